/** The connection to the service: its client, remade when URL or key change, its model, and the outcomes it knows. */

import { createHash } from "node:crypto";
import { join } from "node:path";

import { DirectoryStorage, Onward, Session, type Feedback } from "onward-client";
import * as vscode from "vscode";

import { settings } from "./settings";

const KEY = "apiKey";
const OUTCOMES = "outcomes";
const LEAVING_MS = 2000;

/** An answer, and the service that gave it: no other knows it. */
export interface Answered {
  inferenceId: string;
  home: string;
}

/** What is told of an answer by a metric's name. */
export type Said = Pick<Feedback, "value" | "finalText" | "snapshot" | "source">;

export class Service implements vscode.Disposable {
  private client: Onward | undefined;
  private home = "";
  private model: Promise<string> | undefined;
  private listed: Promise<void> | undefined;
  private readonly harness: string;
  private readonly sessions = new Map<string, Session>();
  private readonly changes = new vscode.EventEmitter<void>();
  private readonly subscriptions: vscode.Disposable[];
  /** Fires when `version` or `problem` may have changed. */
  readonly onDidChange = this.changes.event;
  /** The version of the policy that gave the latest answer. */
  version: string | undefined;

  constructor(
    private readonly context: vscode.ExtensionContext,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.harness = `onward-vscode/${context.extension.packageJSON.version}`;
    this.subscriptions = [
      context.secrets.onDidChange(() => this.connect()),
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration("onward.url") || event.affectsConfiguration("onward.model")) void this.connect();
      }),
    ];
  }

  /** Make the client anew; what waits is sent from now on. It is there when this resolves, whether the service is or not. */
  async connect(): Promise<void> {
    const before = this.client;
    const apiKey = await this.context.secrets.get(KEY);
    const { url } = settings;
    this.home = homeOf(url);
    this.model = this.listed = undefined;
    this.client = new Onward({
      url,
      apiKey: apiKey === "" ? undefined : apiKey,
      storage: new DirectoryStorage(join(this.context.globalStorageUri.fsPath, "feedback", this.home)),
      userAgent: this.harness,
      closeTimeoutMs: LEAVING_MS,
      onRefused: (request, error) => this.log.error(`the service refused ${request.body}: ${error.message}`),
      onError: (error) => this.log.error(String(error)),
    });
    before?.close().catch((error) => this.log.error(String(error)));
    this.listOutcomes().catch((error) => this.log.warn(`the outcomes are not known yet: ${error}`));
    this.changes.fire();
  }

  async setApiKey(key: string): Promise<void> {
    await this.context.secrets.store(KEY, key);
  }

  /** The reason why feedback waits, if it does. */
  get problem(): string | undefined {
    return this.client?.problem;
  }

  queued(): Promise<number> {
    return this.connected.queued();
  }

  /** Ask for an answer to what belongs to `workload`. Throws RequestRefused, Unreachable, and AbortError. */
  async generate(
    path: string,
    body: object,
    workload: string,
    token: vscode.CancellationToken,
  ): Promise<{ answered: Answered; body: any }> {
    const abort = new AbortController();
    const cancelled = token.onCancellationRequested(() => abort.abort());
    try {
      const model = await (this.model ??= this.findModel());
      const whole = { model, ...(settings.user && { user: settings.user }), ...body };
      const { home } = this;
      const { info, body: given } = await this.connected.generate(path, whole, this.session(workload), abort.signal);
      this.version = info.policyVersion;
      return { answered: { inferenceId: info.inferenceId, home }, body: given };
    } finally {
      cancelled.dispose();
      this.changes.fire();
    }
  }

  /** Queue an outcome, unless the service does not know its name or the answer; return the id of the feedback. */
  async tell({ inferenceId, home }: Answered, metric: string, said: Said): Promise<string | undefined> {
    if (this.listed === undefined) await this.listOutcomes().catch(() => undefined);
    if (!this.gave(home, metric)) return undefined;
    if (!this.knows(metric)) {
      this.log.debug(`${metric} is no outcome of the service`);
      return undefined;
    }
    const id = await this.connected.feedback({ inferenceId, metric, ...said });
    this.log.debug(`${metric} of ${inferenceId}: ${said.value ?? "by its text"}`);
    this.changes.fire();
    return id;
  }

  async withdraw({ home }: Answered, feedbackId: string): Promise<void> {
    if (this.gave(home, "a withdrawal")) await this.connected.withdraw(feedbackId);
  }

  /** Say whether the service has an outcome of that name. Nobody knows before it was reached once; then all but
   * `shown`, which older services lack, count as known. */
  knows(metric: string): boolean {
    const names = this.context.globalState.get<string[]>(OUTCOMES);
    return names === undefined ? metric !== "shown" : names.includes(metric);
  }

  /** Send what waits, for two seconds at most. */
  async close(): Promise<void> {
    await this.client?.close();
  }

  dispose(): void {
    for (const subscription of this.subscriptions) subscription.dispose();
    this.changes.dispose();
  }

  /** Say whether an answer is by the service that is connected, and log what is left out because it is not. */
  private gave(home: string, what: string): boolean {
    if (home !== this.home) this.log.info(`${what} is left out: the answer is by the service of another URL`);
    return home === this.home;
  }

  private get connected(): Onward {
    if (this.client === undefined) throw new Error("not connected yet");
    return this.client;
  }

  private async findModel(): Promise<string> {
    try {
      return settings.model || (await this.connected.model());
    } catch (error) {
      this.model = undefined; // to be asked for again
      throw error;
    }
  }

  private listOutcomes(): Promise<void> {
    this.listed ??= this.connected
      .outcomes()
      .then((found) => this.context.globalState.update(OUTCOMES, [...found.keys()]))
      .catch((error) => {
        this.listed = undefined;
        throw error;
      });
    return this.listed;
  }

  /** Return the session of this window for a workload, with the consent that holds now. */
  private session(workload: string): Session {
    const session = this.sessions.get(workload) ?? new Session({ workload, harness: this.harness });
    this.sessions.set(workload, session);
    return session.with({ learn: settings.learn });
  }
}

/** Return the name of a service's directory: of the same service for its URL with a slash at the end, or `/v1`. */
function homeOf(url: string): string {
  const plain = url.replace(/\/+$/, "").replace(/\/v1$/, "");
  return createHash("sha256").update(plain).digest("hex").slice(0, 16);
}
