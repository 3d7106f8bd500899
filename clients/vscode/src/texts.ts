/** Pure functions on texts and places in them. */

import { distance } from "fastest-levenshtein";

/** A change of a document: `length` characters at `start` became `text`. */
export interface Change {
  start: number;
  length: number;
  text: string;
}

export interface Place {
  start: number;
  end: number;
}

/** Return where a place of a document is after a change, or undefined if the change swallowed it. What is inserted at
 * its edges stays outside. */
export function moved(place: Place, change: Change): Place | undefined {
  const end = change.start + change.length;
  const by = change.text.length - change.length;
  if (end <= place.start) return { start: place.start + by, end: place.end + by };
  if (change.start >= place.end) return place;
  if (change.start >= place.start && end <= place.end) return { start: place.start, end: place.end + by };
  return undefined;
}

/** Return the share of a text's lines that are in a file, in any place and with any indentation: the service's rule. */
export function shareLeft(text: string, file: string): number {
  const lines = (of: string): string[] => of.split("\n").map((line) => line.trim()).filter((line) => line !== "");
  const there = new Set(lines(file));
  const sought = lines(text);
  return sought.length === 0 ? 0 : sought.filter((line) => there.has(line)).length / sought.length;
}

/** Return the share of a text that is kept in what became of it: the service's rule, by Levenshtein's distance. */
export function shareKept(text: string, now: string): number {
  return text === now ? 1 : 1 - distance(text, now) / Math.max(text.length, now.length);
}

/** Return the code of an answer: that of its first fence, else all of it. */
export function codeOf(answer: string): string {
  const fenced = /```[^\n]*\n([\s\S]*?)\n?```/.exec(answer);
  return fenced?.[1] ?? answer;
}

/** Split off the indentation of a line that has nothing else yet: a model writes whole lines better than their rest. */
export function withoutIndentation(before: string): { prompt: string; indentation: string } {
  const indentation = /(?:^|\n)([ \t]+)$/.exec(before)?.[1] ?? "";
  return { prompt: before.slice(0, before.length - indentation.length), indentation };
}

/** Return a text with the line ends of its document. */
export function withLineEnds(text: string, ends: "\n" | "\r\n"): string {
  return text.replace(/\r?\n/g, ends);
}

/** Return what is left of a suggestion after the beginning that stands in the document, or undefined if it does not fit. */
export function restOf(suggestion: string, standing: string): string | undefined {
  return suggestion.startsWith(standing) ? suggestion.slice(standing.length) : undefined;
}
