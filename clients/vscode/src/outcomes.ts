/** What becomes of an answer, told to the service: each thing once. */

import * as vscode from "vscode";

import type { Answered, Said, Service } from "./service";
import { settings } from "./settings";
import type { Survival } from "./survival";
import { shareKept } from "./texts";

/** An answer that was offered to the user as code, which goes into the document as it stands here. */
export interface Offer extends Answered {
  code: string;
}

/** What stands in a document since the user accepted it. */
export interface Accepted extends Answered {
  uri: vscode.Uri;
  code: string;
  /** The lines that it is in, where that is not the whole answer; else the service knows them itself. */
  lines?: string;
}

interface Remembered extends Accepted {
  isThere: boolean;
  undone?: Promise<string | undefined>;
}

const REMEMBERED = 50;
const LONGEST_TEXT = 16_384; // that the service measures

export class Outcomes implements vscode.Disposable {
  private readonly told = new Set<string>();
  private readonly remembered: Remembered[] = [];
  private readonly listening: vscode.Disposable;
  /** The answer that was accepted last in this window. */
  private latest: Accepted | undefined;

  constructor(
    private readonly service: Service,
    private readonly survival: Survival,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.listening = vscode.workspace.onDidChangeTextDocument((event) => this.look(event));
  }

  shown(offer: Offer): void {
    this.once(offer, "shown", true);
  }

  rejected(offer: Offer): void {
    this.once(offer, "rejected", true);
  }

  /** The user took the whole answer. */
  taken(accepted: Accepted): void {
    this.once(accepted, "accepted", true);
    this.remember(accepted);
  }

  /** The user took a share of the answer. */
  partlyTaken(accepted: Accepted, share: number): void {
    this.once(accepted, "partially_accepted", share);
    this.remember(accepted);
  }

  /** The user kept an answer after changing it: `finalText` is the whole answer as it would have been.
   *
   * Without consent only the share that was kept is told. */
  edited(accepted: Accepted, answer: string, finalText: string): void {
    const isSent = settings.learn && Math.max(answer.length, finalText.length) <= LONGEST_TEXT;
    if (this.first(accepted.inferenceId, "edited")) {
      this.tell(accepted, "edited", isSent ? { finalText } : { value: shareKept(answer, finalText) });
    }
    this.remember(accepted);
  }

  /** Tests ran after the latest acceptance. */
  tested(passed: boolean): void {
    if (this.latest === undefined) return;
    this.tell(this.latest, "tests_passed", { value: passed, source: "environment" });
  }

  dispose(): void {
    this.listening.dispose();
  }

  private once(answer: Answered, metric: string, value: boolean | number): void {
    if (this.first(answer.inferenceId, metric)) this.tell(answer, metric, { value });
  }

  private first(inferenceId: string, metric: string): boolean {
    const key = `${inferenceId} ${metric}`;
    if (this.told.has(key)) return false;
    this.told.add(key);
    return true;
  }

  private tell(answer: Answered, metric: string, said: Said): void {
    this.service.tell(answer, metric, said).catch((error) => this.log.error(`${metric} is not told: ${error}`));
  }

  private remember(accepted: Accepted): void {
    this.latest = accepted;
    this.remembered.push({ ...accepted, isThere: true });
    if (this.remembered.length > REMEMBERED) this.remembered.shift();
    this.survival.watch(accepted);
  }

  /** See whether an undo took an accepted answer back, or a redo brought it again. */
  private look({ document, reason }: vscode.TextDocumentChangeEvent): void {
    const here = this.remembered.filter((one) => one.uri.toString() === document.uri.toString());
    if (here.length === 0) return;
    const text = document.getText();
    for (const one of here) {
      const [wasThere, isThere] = [one.isThere, text.includes(one.code)];
      one.isThere = isThere;
      if (wasThere && !isThere && reason === vscode.TextDocumentChangeReason.Undo) this.undo(one);
      if (!wasThere && isThere && reason === vscode.TextDocumentChangeReason.Redo) this.redo(one);
    }
  }

  private undo(one: Remembered): void {
    one.undone ??= this.service
      .tell(one, "reverted", { value: true })
      .catch((error) => void this.log.error(`reverted is not told: ${error}`));
  }

  private redo(one: Remembered): void {
    const { undone } = one;
    delete one.undone;
    undone
      ?.then((id) => (id === undefined ? undefined : this.service.withdraw(one, id)))
      .catch((error) => this.log.error(`the undo is not withdrawn: ${error}`));
  }
}
