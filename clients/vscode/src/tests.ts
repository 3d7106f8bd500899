/** Test runs: tasks of the group `test`, and commands in terminals. */

import * as vscode from "vscode";

import type { Outcomes } from "./outcomes";
import { settings } from "./settings";

export function watchTests(outcomes: Outcomes, log: vscode.LogOutputChannel): vscode.Disposable {
  return vscode.Disposable.from(
    vscode.tasks.onDidEndTaskProcess(({ execution, exitCode }) => {
      if (execution.task.group?.id === vscode.TaskGroup.Test.id && exitCode !== undefined) outcomes.tested(exitCode === 0);
    }),
    vscode.window.onDidEndTerminalShellExecution(({ execution, exitCode }) => {
      if (exitCode !== undefined && runsTests(execution.commandLine.value, log)) outcomes.tested(exitCode === 0);
    }),
  );
}

function runsTests(command: string, log: vscode.LogOutputChannel): boolean {
  try {
    return new RegExp(settings.testCommands).test(command);
  } catch (error) {
    log.error(`onward.tests.commands: ${error}`);
    return false;
  }
}
