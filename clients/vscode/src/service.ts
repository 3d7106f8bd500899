/** The connection to the service: its client, remade when URL or key change, its model, and the outcomes it knows. */

import { join } from "node:path";

import { DirectoryStorage, Onward, Session, type AnswerInfo, type Feedback } from "onward-client";
import * as vscode from "vscode";

import { settings } from "./settings";

const KEY = "apiKey";
const OUTCOMES = "outcomes";
const LEAVING_MS = 2000;

export class Service implements vscode.Disposable {
  private client: Onward | undefined;
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
    this.model = this.listed = undefined;
    this.client = new Onward({
      url: settings.url,
      apiKey: apiKey === "" ? undefined : apiKey,
      storage: new DirectoryStorage(join(this.context.globalStorageUri.fsPath, "feedback")),
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
  ): Promise<{ info: AnswerInfo; body: any }> {
    const abort = new AbortController();
    const cancelled = token.onCancellationRequested(() => abort.abort());
    try {
      const model = await (this.model ??= this.findModel());
      const whole = { model, ...(settings.user && { user: settings.user }), ...body };
      const answer = await this.connected.generate(path, whole, this.session(workload), abort.signal);
      this.version = answer.info.policyVersion;
      return answer;
    } finally {
      cancelled.dispose();
      this.changes.fire();
    }
  }

  /** Queue an outcome, unless the service does not know its name; return the id of the feedback. */
  async tell(feedback: Feedback): Promise<string | undefined> {
    if (this.listed === undefined) await this.listOutcomes().catch(() => undefined);
    if (!this.knows(feedback.metric)) {
      this.log.debug(`${feedback.metric} is no outcome of the service`);
      return undefined;
    }
    const id = await this.connected.feedback(feedback);
    this.log.debug(`${feedback.metric} of ${feedback.inferenceId}: ${feedback.value ?? "by its text"}`);
    this.changes.fire();
    return id;
  }

  async withdraw(feedbackId: string): Promise<void> {
    await this.connected.withdraw(feedbackId);
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
