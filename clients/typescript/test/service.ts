/** The service under test: a process that can be killed and started again at the same address. */

import { spawn, type ChildProcess } from "node:child_process";
import { mkdtemp, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";

/** Where all tests work, and the command that starts a service: COMMAND DIRECTORY PORT, which prints its port. */
const ROOT = process.env["ONWARD_TEST_DIRECTORY"] ?? "";
const COMMAND = JSON.parse(process.env["ONWARD_TEST_COMMAND"] ?? "[]") as string[];

export class Service {
  private process: ChildProcess | undefined;
  private port = "0";

  private constructor(readonly directory: string) {}

  static async start(): Promise<Service> {
    const service = new Service(await mkdtemp(join(ROOT, "service-")));
    await service.start();
    return service;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const [program = "", ...rest] = COMMAND;
    const child = spawn(program, [...rest, this.directory, this.port], { stdio: ["pipe", "pipe", "inherit"] });
    this.process = child;
    this.port = await new Promise<string>((resolve, reject) => {
      child.stdout.once("data", (line: Buffer) => resolve(line.toString().trim()));
      child.once("exit", () => reject(new Error("the service did not start")));
    });
  }

  async kill(): Promise<void> {
    const child = this.process;
    if (child === undefined || child.exitCode !== null) return;
    const over = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await over;
  }

  /** Leave the ids of all feedback that was given, for whoever compares them with the service's store. */
  async expect(feedbackIds: string[]): Promise<void> {
    await writeFile(join(this.directory, "given.json"), JSON.stringify(feedbackIds));
  }

  async statusOf(feedbackId: string): Promise<string> {
    const response = await fetch(`${this.url}/v1/feedback/${feedbackId}`);
    return ((await response.json()) as { status: string }).status;
  }
}

export async function until(condition: () => unknown | Promise<unknown>, what: string): Promise<void> {
  const deadline = Date.now() + 120_000;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error(`${what} did not come true`);
    await pause(10);
  }
}
