/** Suggestions while the user types. */

import { setTimeout as pause } from "node:timers/promises";

import { RequestRefused } from "onward-client";
import * as vscode from "vscode";

import type { Offer, Outcomes } from "./outcomes";
import type { Service } from "./service";
import { settings } from "./settings";
import { lineEnds, linesAt } from "./documents";
import { restOf, withLineEnds, withoutIndentation } from "./texts";

const SHOWN_AFTER_MS = 150; // what stands for so long has been seen
const SHOWING = "onward.isShowing";

/** A suggestion at its place in a document; `taken` characters of it were accepted by word or line. */
interface Suggestion {
  offer: Offer;
  document: vscode.TextDocument;
  start: number;
  taken: number;
}

export class Suggestions implements vscode.InlineCompletionItemProvider, vscode.Disposable {
  private current: Suggestion | undefined;
  private share = 1; // of the characters that the settings allow: less once they did not fit the context
  private readonly registrations: vscode.Disposable[];

  constructor(
    private readonly service: Service,
    private readonly outcomes: Outcomes,
    private readonly log: vscode.LogOutputChannel,
  ) {
    const command = (name: string, work: (...given: any[]) => unknown): vscode.Disposable =>
      vscode.commands.registerCommand(name, work, this);
    this.registrations = [
      vscode.languages.registerInlineCompletionItemProvider({ pattern: "**" }, this),
      command("onward.accepted", (inferenceId: string) => this.accept(inferenceId)),
      command("onward.dismiss", () => this.dismiss()),
      command("onward.acceptNextWord", () => this.takePart("editor.action.inlineSuggest.acceptNextWord")),
      command("onward.acceptNextLine", () => this.takePart("editor.action.inlineSuggest.acceptNextLine")),
    ];
  }

  async provideInlineCompletionItems(
    document: vscode.TextDocument,
    position: vscode.Position,
    context: vscode.InlineCompletionContext,
    token: vscode.CancellationToken,
  ): Promise<vscode.InlineCompletionItem[]> {
    if (!settings.suggests || !settings.suggestsIn(document.languageId)) return [];
    if (context.selectedCompletionInfo !== undefined) return []; // the list of words decides
    const rest = this.restAt(document, position);
    if (rest !== undefined && this.current !== undefined) return [this.item(this.current, rest, document, position, token)];
    await pause(context.triggerKind === vscode.InlineCompletionTriggerKind.Automatic ? settings.debounceMs : 0);
    if (token.isCancellationRequested) return [];
    const offer = await this.ask(document, position, token);
    if (offer === undefined || token.isCancellationRequested) return [];
    this.conclude();
    this.current = { offer, document, start: document.offsetAt(position), taken: 0 };
    return [this.item(this.current, offer.code, document, position, token)];
  }

  dispose(): void {
    this.conclude();
    for (const registration of this.registrations) registration.dispose();
  }

  /** Return what is left of the current suggestion at a place, if the user has typed or accepted its beginning. */
  private restAt(document: vscode.TextDocument, position: vscode.Position): string | undefined {
    const at = document.offsetAt(position);
    if (this.current?.document !== document || at < this.current.start) return undefined;
    const standing = document.getText(new vscode.Range(document.positionAt(this.current.start), position));
    return restOf(this.current.offer.code, standing) || undefined;
  }

  private item(
    suggestion: Suggestion,
    text: string,
    document: vscode.TextDocument,
    position: vscode.Position,
    token: vscode.CancellationToken,
  ): vscode.InlineCompletionItem {
    const { version } = document;
    setTimeout(() => {
      const editor = vscode.window.activeTextEditor;
      const stands = editor?.document === document && document.version === version && !token.isCancellationRequested;
      if (!stands || !editor.selection.active.isEqual(position) || this.current !== suggestion) return;
      void vscode.commands.executeCommand("setContext", SHOWING, true);
      this.outcomes.shown(suggestion.offer);
    }, SHOWN_AFTER_MS);
    return new vscode.InlineCompletionItem(text, new vscode.Range(position, position), {
      title: "Accepted",
      command: "onward.accepted",
      arguments: [suggestion.offer.inferenceId],
    });
  }

  private async ask(
    document: vscode.TextDocument,
    position: vscode.Position,
    token: vscode.CancellationToken,
  ): Promise<Offer | undefined> {
    try {
      const [before, suffix] = this.around(document, position);
      const { prompt, indentation } = withoutIndentation(before);
      const body = { prompt, ...(suffix !== "" && { suffix }), max_tokens: settings.suggestionTokens };
      const { answered, body: answer } = await this.service.generate("/v1/completions", body, "suggestion", token);
      const code = restOf(withLineEnds(answer.choices[0].text, lineEnds(document)), indentation);
      return code === undefined || code.trim() === "" ? undefined : { ...answered, code };
    } catch (error) {
      if (token.isCancellationRequested) return undefined;
      if (error instanceof RequestRefused && error.code === "context_length_exceeded") this.share /= 2;
      this.log.warn(`no suggestion: ${error}`);
      return undefined;
    }
  }

  /** Return the text before and behind a place, as much of it as may be sent. */
  private around(document: vscode.TextDocument, position: vscode.Position): [string, string] {
    const text = document.getText();
    const at = document.offsetAt(position);
    const before = text.slice(Math.max(0, at - Math.ceil(this.share * settings.prefixCharacters)), at);
    const after = text.slice(at, at + Math.floor(this.share * settings.suffixCharacters));
    return [withLineEnds(before, "\n"), withLineEnds(after, "\n")];
  }

  private accept(inferenceId: string): void {
    if (this.current?.offer.inferenceId !== inferenceId) return;
    const { offer, document } = this.current;
    this.outcomes.taken({ ...offer, uri: document.uri });
    this.forget();
  }

  private async dismiss(): Promise<void> {
    const dismissed = this.current;
    await vscode.commands.executeCommand("editor.action.inlineSuggest.hide");
    if (dismissed === undefined) return;
    if (dismissed.taken === 0) this.outcomes.rejected(dismissed.offer);
    this.conclude();
  }

  /** Accept a part by VS Code's own command, and note how much that was. */
  private async takePart(command: string): Promise<void> {
    const before = this.current;
    const place = (): number | undefined => {
      const editor = vscode.window.activeTextEditor;
      return editor?.document.offsetAt(editor.selection.active);
    };
    const from = place();
    await vscode.commands.executeCommand(command);
    const to = place();
    if (before !== undefined && from !== undefined && to !== undefined) before.taken += Math.max(0, to - from);
  }

  /** Tell what was accepted of a suggestion that is over. */
  private conclude(): void {
    const over = this.current;
    this.forget();
    if (over === undefined || over.taken === 0) return;
    const { code: whole } = over.offer;
    const code = whole.slice(0, over.taken);
    const accepted = { ...over.offer, code, uri: over.document.uri };
    if (code === whole) this.outcomes.taken(accepted);
    else {
      const lines = linesAt(over.document, { start: over.start, end: over.start + code.length });
      this.outcomes.partlyTaken({ ...accepted, lines }, code.length / whole.length);
    }
  }

  private forget(): void {
    this.current = undefined;
    void vscode.commands.executeCommand("setContext", SHOWING, false);
  }
}
