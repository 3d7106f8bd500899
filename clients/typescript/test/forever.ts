/** A program that gives feedback until it is killed: `forever.js URL DIRECTORY INFERENCE`; it prints each id. */

import { DirectoryStorage, Onward } from "../src/index";

async function main(): Promise<void> {
  const [url = "", directory = "", inferenceId = ""] = process.argv.slice(2);
  const onward = new Onward({ url, storage: new DirectoryStorage(directory) });
  for (let number = 0; ; number++) {
    const id = await onward.feedback({ inferenceId, metric: "comment", value: `comment ${number}` });
    process.stdout.write(`${id}\n`);
  }
}

void main();
