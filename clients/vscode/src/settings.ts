/** The settings, as they are at the moment. */

import * as vscode from "vscode";

function read<T>(name: string): T {
  return vscode.workspace.getConfiguration("onward").get<T>(name) as T;
}

export const settings = {
  get url(): string {
    return read("url");
  },
  get model(): string {
    return read("model");
  },
  get learn(): boolean {
    return read("learn");
  },
  get user(): string {
    return read("user");
  },
  get suggests(): boolean {
    return read("suggestions.enabled");
  },
  suggestsIn(language: string): boolean {
    const languages = read<string[]>("suggestions.languages");
    return languages.includes("*") || languages.includes(language);
  },
  get debounceMs(): number {
    return read("suggestions.debounceMs");
  },
  get suggestionTokens(): number {
    return read("suggestions.maxTokens");
  },
  get prefixCharacters(): number {
    return read("suggestions.prefixCharacters");
  },
  get suffixCharacters(): number {
    return read("suggestions.suffixCharacters");
  },
  get editTokens(): number {
    return read("edits.maxTokens");
  },
  /** Seconds after an acceptance, by the outcome that says what is left then. */
  get survival(): Record<string, number> {
    return read("survival");
  },
  get testCommands(): string {
    return read("tests.commands");
  },
  /** Whether the question about learning has been answered. */
  get learnIsChosen(): boolean {
    const found = vscode.workspace.getConfiguration("onward").inspect("learn");
    return found?.globalValue !== undefined || found?.workspaceValue !== undefined;
  },
  async chooseLearn(learn: boolean): Promise<void> {
    await vscode.workspace.getConfiguration("onward").update("learn", learn, vscode.ConfigurationTarget.Global);
  },
};
