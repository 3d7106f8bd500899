/** Errors that callers may want to tell apart. */

/** The queue holds as much as it may: the feedback was not taken, and nothing that is queued was dropped. */
export class QueueFull extends Error {
  override name = "QueueFull";
}

/** The service did not answer, or could not; asking again later may help. */
export class Unreachable extends Error {
  override name = "Unreachable";
}

/** The service refused the request: sending it again will not help. `param` is the field at fault, if it says so. */
export class RequestRefused extends Error {
  override name = "RequestRefused";

  constructor(
    readonly status: number,
    message: string,
    readonly param: string | null,
    readonly code: string | null,
  ) {
    super(`${status}: ${message}`);
  }
}
