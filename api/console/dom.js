// Elements and words. Everything is set as text: what comes from clients stays text, and turns no other text around.

export const at = id => document.getElementById(id);

const ACTS = /(?![\n\r\t\u200c\u200d])[\p{Cc}\p{Cf}]/gu;

/** A text in which characters that are not seen, and turn or hide others, stand as their escapes, as on a terminal. */
const visible = text => text.replace(ACTS, each => `\\u{${each.codePointAt(0).toString(16)}}`);

/** `make("td", "a class", "text", child, …)`; a child that is null or false is left out. */
export function make(name, kind = "", ...children) {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.append(...children.filter(child => child !== null && child !== undefined && child !== false)
    .map(child => child instanceof Node ? child : visible(String(child))));
  return element;
}

export function button(text, kind, act, title = "") {
  const element = make("button", kind, text);
  element.type = "button";
  if (title) element.title = title;
  element.addEventListener("click", act);
  return element;
}

/** Rows of a table's body; a cell is a text, or [text, class]. */
export function fill(body, rows, empty) {
  body.replaceChildren(...rows.map(row => make("tr", "", ...row.map(content => {
    const [text, kind] = Array.isArray(content) ? content : [content, ""];
    return make("td", kind, text ?? "–");
  }))));
  if (!rows.length) {
    const cell = make("td", "empty", empty);
    cell.colSpan = 9;
    body.append(make("tr", "", cell));
  }
}

/** New items of a list; what was chosen in it stays so, by its place. */
export function refill(list, items, empty) {
  const chosen = [...list.children].indexOf(document.activeElement.closest("li"));
  list.replaceChildren(...items.length ? items : [make("li", "empty", empty)]);
  list.children[chosen]?.querySelector(".row")?.focus();
}

export const number = value => value.toLocaleString("en");
export const percent = value => `${(100 * value).toFixed(1)} %`;
export const signed = value => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
export const plain = name => name.replaceAll("_", " ");
export const tone = value => value > 0 ? "good" : value < 0 ? "bad" : "even";

/** Of today the time alone. UTC, as everywhere. */
export function time(stamp) {
  const [day, clock] = [stamp.slice(0, 10), stamp.slice(11, 19)];
  return day === new Date().toISOString().slice(0, 10) ? clock : `${day} ${clock}`;
}

export function bytes(count) {
  const power = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
  return `${power ? (count / 1000 ** power).toPrecision(3) : count} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 90) return `${seconds.toFixed(1)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(1)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

/** A word that stands in a colour of its own. */
export const state = name => make("span", `state ${name}`, plain(name));

/** A label and what it names, within a list of such. */
export const named = (label, content) => make("div", "named", make("dt", "", label), make("dd", "", content ?? "–"));
