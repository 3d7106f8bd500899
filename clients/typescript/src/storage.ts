/** Where queued feedback lies: memory, or a directory of files; another place implements `Storage`. */

import { randomUUID } from "node:crypto";
import { mkdir, open, readFile, readdir, rename, unlink } from "node:fs/promises";
import { join } from "node:path";

/** Texts by key; a key has letters, digits and `-` alone. Several programs may share a storage. */
export interface Storage {
  /** Whether what it holds outlives the process. */
  readonly isDurable: boolean;
  keys(): Promise<string[]>;
  get(key: string): Promise<string | undefined>;
  /** Keep a text; it is durable when this resolves. */
  set(key: string, text: string): Promise<void>;
  /** Forget a text, also one that is not there. */
  delete(key: string): Promise<void>;
}

export class MemoryStorage implements Storage {
  readonly isDurable = false;
  private readonly texts = new Map<string, string>();

  async keys(): Promise<string[]> {
    return [...this.texts.keys()];
  }

  async get(key: string): Promise<string | undefined> {
    return this.texts.get(key);
  }

  async set(key: string, text: string): Promise<void> {
    this.texts.set(key, text);
  }

  async delete(key: string): Promise<void> {
    this.texts.delete(key);
  }
}

const ENDING = ".json";

/** A directory with a file for each text: each is written aside, flushed to the disk, and then put in place. */
export class DirectoryStorage implements Storage {
  readonly isDurable = true;

  constructor(private readonly directory: string) {}

  async keys(): Promise<string[]> {
    const names = await readdir(this.directory).catch(orNothing([]));
    return names.filter((name) => name.endsWith(ENDING)).map((name) => name.slice(0, -ENDING.length));
  }

  async get(key: string): Promise<string | undefined> {
    return readFile(this.file(key), "utf8").catch(orNothing(undefined));
  }

  async set(key: string, text: string): Promise<void> {
    await mkdir(this.directory, { recursive: true });
    const aside = join(this.directory, `${key}.${randomUUID()}.part`);
    const file = await open(aside, "wx");
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(aside, this.file(key));
  }

  async delete(key: string): Promise<void> {
    await unlink(this.file(key)).catch(orNothing(undefined));
  }

  private file(key: string): string {
    return join(this.directory, key + ENDING);
  }
}

/** Take a file or directory that is not there for nothing; other errors are errors. */
function orNothing<T>(nothing: T): (error: NodeJS.ErrnoException) => T {
  return (error) => {
    if (error.code !== "ENOENT") throw error;
    return nothing;
  };
}
