/** Places in documents. */

import * as vscode from "vscode";

import type { Place } from "./texts";

export function lineEnds(document: vscode.TextDocument): "\n" | "\r\n" {
  return document.eol === vscode.EndOfLine.CRLF ? "\r\n" : "\n";
}

export function rangeAt(document: vscode.TextDocument, { start, end }: Place): vscode.Range {
  return new vscode.Range(document.positionAt(start), document.positionAt(end));
}

/** Return the whole lines that a place is in. */
export function linesAt(document: vscode.TextDocument, place: Place): string {
  const range = rangeAt(document, place);
  return document.getText(new vscode.Range(range.start.line, 0, range.end.line, Number.MAX_SAFE_INTEGER));
}
