/** The command that changes the selected code as the user says, and what the user makes of the change. */

import * as vscode from "vscode";

import type { Offer, Outcomes } from "./outcomes";
import type { Service } from "./service";
import { lineEnds, linesAt, rangeAt } from "./documents";
import { settings } from "./settings";
import { codeOf, moved, withLineEnds, type Place } from "./texts";

/** A change that the user has not decided on. */
interface Edit {
  offer: Offer;
  document: vscode.TextDocument;
  place: Place;
  before: string;
  answer: string;
}

const PENDING = "onward.hasEdit";
const RULES = "You change code. Answer with the whole changed code in one fenced block, and nothing else.";

export class Edits implements vscode.CodeLensProvider, vscode.Disposable {
  private pending: Edit | undefined;
  private readonly lenses = new vscode.EventEmitter<void>();
  private readonly mark = vscode.window.createTextEditorDecorationType({
    backgroundColor: new vscode.ThemeColor("diffEditor.insertedTextBackground"),
  });
  private readonly registrations: vscode.Disposable[];
  readonly onDidChangeCodeLenses = this.lenses.event;

  constructor(
    private readonly service: Service,
    private readonly outcomes: Outcomes,
  ) {
    this.registrations = [
      this.mark,
      this.lenses,
      vscode.languages.registerCodeLensProvider({ pattern: "**" }, this),
      vscode.workspace.onDidChangeTextDocument((event) => this.follow(event)),
      vscode.commands.registerTextEditorCommand("onward.edit", (editor) => this.begin(editor)),
      vscode.commands.registerCommand("onward.keepEdit", () => this.keep()),
      vscode.commands.registerCommand("onward.undoEdit", () => this.undo()),
    ];
  }

  provideCodeLenses(document: vscode.TextDocument): vscode.CodeLens[] {
    if (this.pending?.document !== document) return [];
    const start = document.positionAt(this.pending.place.start);
    const lens = (title: string, command: string): vscode.CodeLens =>
      new vscode.CodeLens(new vscode.Range(start, start), { title, command });
    return [lens("$(check) Keep", "onward.keepEdit"), lens("$(discard) Undo", "onward.undoEdit")];
  }

  dispose(): void {
    for (const registration of this.registrations) registration.dispose();
  }

  private async begin(editor: vscode.TextEditor): Promise<void> {
    const { document, selection } = editor;
    const before = document.getText(selection);
    if (before.trim() === "") {
      void vscode.window.showInformationMessage("Onward: select the code that is to be changed.");
      return;
    }
    const wish = await vscode.window.showInputBox({ title: "Onward", prompt: "What is to be changed?" });
    if (!wish) return;
    const { version } = document;
    const progress = { location: vscode.ProgressLocation.Notification, title: "Onward", cancellable: true };
    const found = await vscode.window.withProgress(progress, (_, token) => this.ask(document, before, wish, token));
    if (found === undefined) return;
    if (document.version !== version) {
      void vscode.window.showWarningMessage("Onward: the file changed meanwhile, so the answer was not put in.");
      return;
    }
    await this.apply(editor, selection, before, found);
  }

  private async ask(
    document: vscode.TextDocument,
    before: string,
    wish: string,
    token: vscode.CancellationToken,
  ): Promise<{ offer: Offer; answer: string } | undefined> {
    const code = `\`\`\`${document.languageId}\n${before}\n\`\`\``;
    const messages = [
      { role: "system", content: RULES },
      { role: "user", content: `${wish}\n\n${code}` },
    ];
    try {
      const body = { messages, max_tokens: settings.editTokens };
      const { answered, body: given } = await this.service.generate("/v1/chat/completions", body, "edit", token);
      const answer: string = given.choices[0].message.content ?? "";
      const code = withLineEnds(codeOf(answer), lineEnds(document));
      if (code.trim() === "") throw new Error("the answer has no code");
      return { offer: { ...answered, code }, answer };
    } catch (error) {
      if (!token.isCancellationRequested) void vscode.window.showErrorMessage(`Onward: ${(error as Error).message}`);
      return undefined;
    }
  }

  private async apply(
    editor: vscode.TextEditor,
    selection: vscode.Selection,
    before: string,
    { offer, answer }: { offer: Offer; answer: string },
  ): Promise<void> {
    const { document } = editor;
    const start = document.offsetAt(selection.start);
    if (!(await editor.edit((builder) => builder.replace(selection, offer.code)))) {
      void vscode.window.showErrorMessage("Onward: the editor did not take the change.");
      return;
    }
    this.outcomes.shown(offer);
    this.decide({ offer, document, place: { start, end: start + offer.code.length }, before, answer });
  }

  private async keep(): Promise<void> {
    const edit = this.pending;
    if (edit === undefined) return;
    const { offer, document, place, answer } = edit;
    const code = document.getText(rangeAt(document, place));
    const accepted = { ...offer, code, uri: document.uri, lines: linesAt(document, place) };
    if (code === offer.code) this.outcomes.taken(accepted);
    else this.outcomes.edited(accepted, answer, answer.replace(codeOf(answer), () => withLineEnds(code, "\n")));
    this.decide(undefined);
  }

  private async undo(): Promise<void> {
    const edit = this.pending;
    if (edit === undefined) return;
    const change = new vscode.WorkspaceEdit();
    change.replace(edit.document.uri, rangeAt(edit.document, edit.place), edit.before);
    this.decide(undefined);
    await vscode.workspace.applyEdit(change);
    this.outcomes.rejected(edit.offer);
  }

  private follow(event: vscode.TextDocumentChangeEvent): void {
    const edit = this.pending;
    if (edit === undefined || edit.document !== event.document) return;
    let place: Place | undefined = edit.place;
    for (const change of event.contentChanges) {
      place &&= moved(place, { start: change.rangeOffset, length: change.rangeLength, text: change.text });
    }
    const wasUndone = event.reason === vscode.TextDocumentChangeReason.Undo;
    if (wasUndone && !event.document.getText().includes(edit.offer.code)) this.outcomes.rejected(edit.offer);
    else if (place !== undefined) {
      this.decide({ ...edit, place });
      return;
    }
    this.decide(undefined);
  }

  /** Put a change before the user, or none any more. */
  private decide(edit: Edit | undefined): void {
    this.pending = edit;
    void vscode.commands.executeCommand("setContext", PENDING, edit !== undefined);
    for (const editor of vscode.window.visibleTextEditors) {
      editor.setDecorations(this.mark, edit?.document === editor.document ? [rangeAt(edit.document, edit.place)] : []);
    }
    this.lenses.fire();
  }
}
