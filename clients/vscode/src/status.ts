/** The item in the status bar: the version of the policy that answered last, and what is wrong. */

import * as vscode from "vscode";

import type { Service } from "./service";
import { settings } from "./settings";

const LOOK_MS = 2000; // a problem comes and goes while nothing else happens

export class Status implements vscode.Disposable {
  private readonly item = vscode.window.createStatusBarItem("onward", vscode.StatusBarAlignment.Right, 100);
  private readonly timer = setInterval(() => void this.show(), LOOK_MS);
  private readonly listening: vscode.Disposable;

  private logged: string | undefined;

  constructor(
    private readonly service: Service,
    private readonly log: vscode.LogOutputChannel,
  ) {
    this.item.name = "Onward";
    this.item.command = "onward.toggleLearning";
    this.listening = vscode.Disposable.from(
      service.onDidChange(() => void this.show()),
      vscode.workspace.onDidChangeConfiguration((event) => {
        if (event.affectsConfiguration("onward")) void this.show();
      }),
    );
    this.item.show();
  }

  dispose(): void {
    clearInterval(this.timer);
    this.listening.dispose();
    this.item.dispose();
  }

  private async show(): Promise<void> {
    const { problem, version } = this.service;
    if (problem !== undefined && problem !== this.logged) this.log.warn(`outcomes wait to be sent: ${problem}`);
    this.logged = problem;
    const waiting = problem === undefined ? 0 : await this.service.queued();
    const icon = problem === undefined ? (settings.learn ? "$(mortar-board)" : "$(circle-slash)") : "$(debug-disconnect)";
    this.item.text = `${icon} Onward ${waiting > 0 ? `${waiting} waiting` : version === undefined ? "" : `v${version}`}`.trim();
    const learns = settings.learn ? "The service learns from what you do with its answers." : "The service does not learn.";
    const served = version === undefined ? "No answer yet." : `The latest answer is by policy version ${version}.`;
    const wrong = problem === undefined ? [] : [`${waiting} outcomes wait to be sent: ${problem}`];
    this.item.tooltip = [settings.url, served, learns, ...wrong, "Click to change whether it may learn."].join("\n");
  }
}
