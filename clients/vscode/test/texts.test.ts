import assert from "node:assert/strict";
import { test } from "node:test";

import { codeOf, moved, restOf, shareKept, shareLeft, withLineEnds, withoutIndentation } from "../src/texts";

test("a place moves with what changes before it and grows with what changes within", () => {
  const place = { start: 10, end: 20 };
  assert.deepEqual(moved(place, { start: 0, length: 3, text: "12345" }), { start: 12, end: 22 });
  assert.deepEqual(moved(place, { start: 10, length: 0, text: "x" }), { start: 11, end: 21 });
  assert.deepEqual(moved(place, { start: 12, length: 2, text: "" }), { start: 10, end: 18 });
  assert.deepEqual(moved(place, { start: 20, length: 0, text: "x" }), place);
  assert.equal(moved(place, { start: 5, length: 8, text: "" }), undefined);
});

test("what is left of a text is counted by lines", () => {
  assert.equal(shareLeft("a\n  b\n\nc\nd", "x\nb\n  d\n"), 0.5);
  assert.equal(shareLeft("\n", "x"), 0);
});

test("what is kept of a text is counted by characters", () => {
  assert.equal(shareKept("", ""), 1);
  assert.equal(shareKept("sum(xs)", "sum(xs)"), 1);
  assert.equal(shareKept("abcd", "abxd"), 0.75);
  assert.equal(shareKept("ab", "abcd"), 0.5);
  assert.equal(shareKept("ab", ""), 0);
});

test("the code of an answer is that of its first fence", () => {
  assert.equal(codeOf("Sure:\n```python\ndef f():\n    pass\n```\nDone."), "def f():\n    pass");
  assert.equal(codeOf("def f(): pass"), "def f(): pass");
});

test("the indentation of a line that has nothing else is split off", () => {
  assert.deepEqual(withoutIndentation("def f():\n    "), { prompt: "def f():\n", indentation: "    " });
  assert.deepEqual(withoutIndentation("  "), { prompt: "", indentation: "  " });
  assert.deepEqual(withoutIndentation("x = "), { prompt: "x = ", indentation: "" });
});

test("a text gets the line ends of its document", () => {
  assert.equal(withLineEnds("a\nb\r\nc", "\r\n"), "a\r\nb\r\nc");
  assert.equal(withLineEnds("a\nb\r\nc", "\n"), "a\nb\nc");
});

test("a suggestion goes on where its beginning stands", () => {
  assert.equal(restOf("hello", "he"), "llo");
  assert.equal(restOf("hello", "ha"), undefined);
});
