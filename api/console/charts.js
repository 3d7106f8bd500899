// Lines over time or versions, drawn by uPlot (a global of its own script), with a legend in words.

import { make } from "./dom.js";

const HEIGHT = 206, WIDTH = 54, COLOURS = 8, FAINT = "2e", FONT = "11px system-ui";
const UNSEEN = { width: 0, stroke: "transparent", spanGaps: true, points: { show: false } };
const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const OF_ARMS = { live: 0, canary: 1, holdback: 2 };
const SEED = 2166150354, PRIME = 16777619, SHIFT = 29;  // FNV-1a; by this seed no names meet that the page's own charts have

const wanted = name => Object.hasOwn(OF_ARMS, name) ? OF_ARMS[name]
  : [...name].reduce((sum, letter) => Math.imul(sum ^ letter.codePointAt(0), PRIME), SEED) >>> SHIFT;

/** Each name's colour, which follows from the name: the same in every chart, and after a reload. Where names of one chart
 * want the same, the arms come first, then the alphabet: a later one takes the next that is free, as long as one is. */
export function colours(names) {
  const found = new Map(), taken = new Set();
  const place = name => [!Object.hasOwn(OF_ARMS, name), name];
  const inTurn = [...names].map(place).sort(([one, name], [other, next]) => one - other || (name < next ? -1 : 1));
  for (const [, name] of inTurn) {
    let number = wanted(name);
    while (taken.has(number) && taken.size < COLOURS) number = (number + 1) % COLOURS;
    found.set(name, number);
    taken.add(number);
  }
  return found;
}

/** One figure. `over`: "time" (seconds since 1970) or "version". `unit`: what the y axis counts; `show` makes a value's
 * words; `range` of that axis, where it is fixed; `lacks`: what has to come before there is anything to draw. */
export class Chart {
  constructor(title, note, { over, unit, show, range = null, lacks = "a turn that has a reward" }) {
    Object.assign(this, { over, unit, show, range, lacks, plot: null, names: [], shaded: [], dotted: [], marks: [], data: [[]] });
    this.colours = new Map();
    this.legend = make("div", "legend");
    this.plane = make("div", "plane");
    this.figure = make("figure", "card", make("figcaption", "", make("h3", "", title), make("small", "", note)),
      this.plane, this.legend);
    this.plane.setAttribute("role", "img");
    this.title = title;
    new ResizeObserver(() => this.fit()).observe(this.plane);
  }

  /** `xs` ascending; `lines`: {name: values}, null where there is none. Of those names that have them, `bands`:
   * {name: [lows, highs]} is shaded about the line, and `dots`: {name: values} stand beside it; `marks`: [[x, word]]
   * are drawn across the figure. */
  draw(xs, lines, { bands = {}, dots = {}, marks = [] } = {}) {
    this.marks = marks;
    const names = Object.keys(lines);
    this.colours = colours(names);
    const shaded = names.filter(name => bands[name]), dotted = names.filter(name => dots[name]);
    this.data = [xs, ...Object.values(lines), ...shaded.flatMap(name => bands[name]), ...dotted.map(name => dots[name])];
    if (!names.some(name => lines[name].some(value => value !== null))) return this.empty();
    const look = JSON.stringify([names, shaded, dotted]);
    if (!this.plot || look !== this.look) {
      Object.assign(this, { look, shaded, dotted });
      this.build(names);
    }
    else this.plot.setData(this.data);
    this.tell(null);
  }

  empty() {
    this.plot?.destroy();
    this.plot = null;
    this.plane.replaceChildren(make("p", "empty", `Nothing yet: it begins with ${this.lacks}.`));
    this.legend.replaceChildren();
  }

  build(names = this.names) {
    this.plot?.destroy();
    this.plane.replaceChildren();
    this.names = names;
    const [ink, grid] = [colour("--dim"), colour("--line")];
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: FONT,
      labelFont: FONT, labelSize: 16, labelGap: 0 };
    const options = {
      width: Math.max(200, this.plane.clientWidth),
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: this.over === "time" }, ...(this.range ? { y: { range: this.range } } : {}) },
      axes: [
        { ...axis, size: 30, label: this.over === "version" ? "version" : "time, UTC", ...(this.over === "version" ? { incrs: STEPS } : { values: (_, ticks) => ticks.map(clock) }) },
        { ...axis, size: wide, label: this.unit, values: (_, ticks) => ticks.map(this.show) },
      ],
      series: [{}, ...names.map(label => ({
        label, stroke: this.line(label), width: 2, spanGaps: true,
        points: { size: 5, show: this.data[0].length < 40 && !this.dotted.length },
      })), ...this.shaded.flatMap(() => [UNSEEN, UNSEEN]), ...this.dotted.map(name => {
        const of = this.line(name);
        return { width: 0, stroke: of, paths: () => null, points: { show: true, size: 3, stroke: of, fill: of } };
      })],
      bands: this.shaded.map((name, place) => {
        const low = 1 + names.length + 2 * place;
        return { series: [low + 1, low], fill: this.line(name) + FAINT };
      }),
      hooks: { setCursor: [plot => this.tell(plot.cursor.idx)], draw: [plot => this.mark(plot, ink)] },
      tzDate: stamp => uPlot.tzDate(new Date(1000 * stamp), "Etc/UTC"),
    };
    this.plot = new uPlot(options, this.data, this.plane);
  }

  line(name) {
    return colour(`--c${this.colours.get(name)}`);
  }

  /** Draw what happened at a moment: a line across, with its word at the top where there is room. */
  mark({ ctx, bbox, scales, valToPos }, ink) {
    ctx.save();
    Object.assign(ctx, { strokeStyle: ink, fillStyle: ink, font: `${11 * devicePixelRatio}px system-ui`, textBaseline: "top", textAlign: "left" });
    ctx.setLineDash([3, 3]);
    let free = -Infinity;
    for (const [x, word] of this.marks.filter(([x]) => x >= scales.x.min && x <= scales.x.max)) {
      const at = valToPos(x, "x", true);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      const width = ctx.measureText(word).width;
      if (at < free || at + width > bbox.left + bbox.width) continue;
      ctx.fillText(word, at + 3, bbox.top + 2);
      free = at + width + 8;
    }
    ctx.restore();
  }

  /** In the legend the values under the cursor; without one, each line's last. */
  tell(place) {
    const values = this.data.slice(1, 1 + this.names.length).map(ys => place === null || place === undefined ? ys.findLast(y => y !== null) : ys[place]);
    const x = place === null || place === undefined ? null : this.data[0][place];
    const where = x === null ? "last" : this.over === "version" ? `version ${x}` : clock(x);
    this.legend.replaceChildren(make("small", "", where), ...this.names.map((name, part) =>
      make("span", "entry", make("i", `swatch c${this.colours.get(name)}`), `${name} `, make("b", "", worded(this.show, values[part])))));
    this.plane.setAttribute("aria-label", `${this.title}: ${this.legend.textContent}`);
  }

  fit() {
    if (this.plot && this.plane.clientWidth) this.plot.setSize({ width: this.plane.clientWidth, height: HEIGHT });
  }
}

/** The width of an axis: enough for its longest number, so that the label does not cover it. */
function wide({ ctx, axes }, numbers, number) {
  const { font: [font], ticks, gap } = axes[number];
  ctx.font = font;
  const widths = (numbers ?? []).map(each => ctx.measureText(each).width / devicePixelRatio);
  return Math.ceil(Math.max(WIDTH, ticks.size + gap + Math.max(0, ...widths)));
}

const clock = stamp => new Date(1000 * stamp).toISOString().slice(11, 19);

const worded = (show, value) => value === null || value === undefined ? "–" : show(value);

/** Rows to columns: `xs`, and for each name the values at each x. Of several rows with one x the last counts. */
export function columns(rows, x, pick) {
  const xs = [...new Set(rows.map(x))].sort((one, other) => one - other);
  const place = new Map(xs.map((value, index) => [value, index]));
  const lines = {};
  for (const row of rows) {
    for (const [name, value] of Object.entries(pick(row))) {
      (lines[name] ??= xs.map(() => null))[place.get(x(row))] = value;
    }
  }
  return [xs, lines];
}
