/** The extension: it connects its parts, and asks once whether the service may learn. */

import * as vscode from "vscode";

import { Edits } from "./edits";
import { Outcomes } from "./outcomes";
import { Service } from "./service";
import { settings } from "./settings";
import { Status } from "./status";
import { Suggestions } from "./suggestions";
import { Survival } from "./survival";
import { watchTests } from "./tests";

const SAID_MS = 5000;
let service: Service | undefined;

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  const log = vscode.window.createOutputChannel("Onward", { log: true });
  service = new Service(context, log);
  await service.connect(); // what is due is told as soon as somebody looks
  const survival = new Survival(context, service, log);
  const outcomes = new Outcomes(service, survival, log);
  context.subscriptions.push(
    log,
    service,
    survival,
    outcomes,
    new Status(service, log),
    new Suggestions(service, outcomes, log),
    new Edits(service, outcomes),
    watchTests(outcomes, log),
    vscode.commands.registerCommand("onward.toggleLearning", toggleLearning),
    vscode.commands.registerCommand("onward.setApiKey", setApiKey),
    vscode.commands.registerCommand("onward.showLog", () => log.show()),
  );
  if (!settings.learnIsChosen) void askConsent();
}

export async function deactivate(): Promise<void> {
  await service?.close();
}

async function askConsent(): Promise<void> {
  const question = `May the service at ${settings.url} learn from what becomes of its suggestions in your files?`;
  const answer = await vscode.window.showInformationMessage(question, "Yes", "No");
  if (answer !== undefined) await settings.chooseLearn(answer === "Yes");
}

async function toggleLearning(): Promise<void> {
  await settings.chooseLearn(!settings.learn);
  const state = settings.learn ? "may learn from what you do with its answers" : "does not learn any more";
  vscode.window.setStatusBarMessage(`Onward: the service ${state}.`, SAID_MS);
}

async function setApiKey(): Promise<void> {
  const key = await vscode.window.showInputBox({ title: "Onward", prompt: "API key; empty: none", password: true });
  if (key !== undefined) await service?.setApiKey(key);
}
