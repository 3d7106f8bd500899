/** Looks at what is left of accepted answers, some time later; also after VS Code was closed in between. */

import * as vscode from "vscode";

import type { Accepted } from "./outcomes";
import type { Answered, Service } from "./service";
import { settings } from "./settings";
import { shareLeft } from "./texts";

interface Watch extends Answered {
  uri: string;
  lines?: string;
  metric: string;
  acceptedAtMs: number;
  dueAtMs: number;
}

const WATCHES = "watches";
const LONGEST_SNAPSHOT = 262_144; // that the service measures
const LONGEST_TIMER_MS = 2 ** 31 - 1;

export class Survival implements vscode.Disposable {
  private watches: Watch[];
  private timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly service: Service,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.watches = context.workspaceState.get<Watch[]>(WATCHES, []);
    this.plan();
  }

  /** Look at an answer that was accepted now, whenever the settings say and the service has an outcome for it.
   *
   * Without consent, nothing is looked at: not later either, when it is given for other answers. */
  watch({ inferenceId, home, uri, lines }: Accepted): void {
    if (!settings.learn) return;
    const acceptedAtMs = Date.now();
    for (const [metric, seconds] of Object.entries(settings.survival)) {
      const dueAtMs = acceptedAtMs + 1000 * seconds;
      if (!this.service.knows(metric)) continue;
      const watch = { inferenceId, home, uri: uri.toString(), metric, acceptedAtMs, dueAtMs };
      this.watches.push(lines === undefined ? watch : { ...watch, lines });
    }
    this.keep();
  }

  dispose(): void {
    clearTimeout(this.timer);
  }

  private keep(): void {
    this.context.workspaceState.update(WATCHES, this.watches).then(undefined, (error) => this.log.error(String(error)));
    this.plan();
  }

  private plan(): void {
    clearTimeout(this.timer);
    if (this.watches.length === 0) return;
    const next = Math.min(...this.watches.map((watch) => watch.dueAtMs));
    this.timer = setTimeout(() => this.look(), Math.min(Math.max(0, next - Date.now()), LONGEST_TIMER_MS));
  }

  private look(): void {
    const now = Date.now();
    const due = this.watches.filter((watch) => watch.dueAtMs <= now);
    this.watches = this.watches.filter((watch) => watch.dueAtMs > now);
    for (const watch of due) {
      this.lookAt(watch, now).catch((error) => this.log.error(`${watch.metric} is not told: ${error}`));
    }
    this.keep();
  }

  /** Tell what is left. After twice the time it would say something else: then it is left out. */
  private async lookAt(watch: Watch, now: number): Promise<void> {
    if (now - watch.dueAtMs > watch.dueAtMs - watch.acceptedAtMs) {
      this.log.info(`${watch.metric} of ${watch.inferenceId} is left out: VS Code was closed when it was due`);
      return;
    }
    if (!settings.learn) return; // it was withdrawn
    const file = await textOf(vscode.Uri.parse(watch.uri));
    if (file === undefined) return;
    const { inferenceId, lines } = watch;
    if (lines === undefined && file.length > LONGEST_SNAPSHOT) {
      this.log.info(`${watch.metric} of ${inferenceId} is left out: the file has more than ${LONGEST_SNAPSHOT} characters`);
      return;
    }
    const said = lines === undefined ? { snapshot: file } : { value: shareLeft(lines, file) };
    await this.service.tell(watch, watch.metric, said);
  }
}

/** Return a file's text as it is in the editor, else on disk: empty for one that was deleted, undefined if nobody knows. */
async function textOf(uri: vscode.Uri): Promise<string | undefined> {
  const open = vscode.workspace.textDocuments.find((document) => document.uri.toString() === uri.toString());
  if (open !== undefined) return open.getText();
  if (uri.scheme === "untitled") return undefined;
  try {
    return new TextDecoder().decode(await vscode.workspace.fs.readFile(uri));
  } catch (error) {
    if (error instanceof vscode.FileSystemError && error.code === "FileNotFound") return "";
    throw error;
  }
}
