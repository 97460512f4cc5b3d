// Draws the page of `ds view` from the document in the element "run". Texts of the run reach the
// page as text nodes alone.
(() => {
"use strict";

const errors = [];
window.addEventListener("error", (event) => {
  errors.push(String(event.message));
  document.body.dataset.errors = errors.join("; ");
});

const run = JSON.parse(document.getElementById("run").textContent);
const series = run.series;
const about = run.run || {};
const summary = run.summary;

// ---- Elements ----

function put(parent, tag, attributes = {}, text = null) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function draw(parent, tag, attributes = {}, text = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

// ---- Numbers as text ----

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

function trimmed(text) {
  return text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text;
}

function plain(value, digits = 4) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (value !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(digits - 2).replace(/\.?0+e/, "e").replace("e+", "e");
  }
  return trimmed(size >= 10 ** digits ? value.toFixed(0) : value.toPrecision(digits));
}

function scaled(value, base, units, digits) {
  if (!isNumber(value)) return "–";
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= base * 0.9995 && unit + 1 < units.length) {
    size /= base;
    ++unit;
  }
  const text = Math.abs(size) >= 1000 ? size.toFixed(0) : size.toPrecision(digits);
  return trimmed(text) + units[unit];
}

const formats = {
  plain,
  count: (value) => scaled(value, 1000, ["", " k", " M", " G", " T"], 4),
  bytes: (value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"], 4),
  seconds: (value) => {
    if (!isNumber(value)) return "–";
    if (value > 0 && value < 1e-3) return plain(value * 1e6) + " µs";
    if (value > 0 && value < 1) return plain(value * 1e3) + " ms";
    return plain(value) + " s";
  },
};

const whole = (value) => (isNumber(value) ? value.toLocaleString("en-US") : "–");

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 60) return formats.seconds(seconds);
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// ---- Axes ----

function niceStep(range, count, base) {
  const raw = range / count;
  if (base === 1024) return 2 ** Math.max(0, Math.ceil(Math.log2(raw)));
  const power = 10 ** Math.floor(Math.log10(raw));
  for (const step of [1, 2, 2.5, 5]) if (raw <= step * power) return step * power;
  return 10 * power;
}

function linearTicks(low, high, count, base = 10) {
  const step = niceStep(high - low, count, base);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
  return ticks;
}

function logTicks(low, high) {
  const ticks = [];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 7));
  const within = last - first <= 2 ? [1, 2, 5] : [1];
  for (let power = first; power <= last; power += every) {
    for (const part of within) {
      const tick = part * 10 ** power;
      if (tick >= low * 0.9999 && tick <= high * 1.0001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : [low, high];
}

// Least and greatest value to show, with some room around them.
function rangeOf(values, log, fromZero) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!isNumber(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (log) return low === high ? [low / 2, high * 2] : [low / 1.06, high * 1.06];
  if (fromZero) return [0, high > 0 ? high * 1.06 : 1];
  if (low === high) return low === 0 ? [0, 1] : [low - Math.abs(low) / 10, high + Math.abs(high) / 10];
  const room = (high - low) * 0.06;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

// ---- Charts ----

// What is shown of the steps: all of them, or the part that was dragged over.
const steps = {least: summary.first_step, most: Math.max(summary.last_step, summary.first_step + 1)};
let shown = {...steps};
const charts = [];
const color = (index) => `var(--c${index % 8})`;

class Chart {
  // `lines`: {name, label, points, step, stack}; the rest: title, format, fromZero, log, marks, hint.
  constructor(parent, options) {
    Object.assign(this, {format: "plain", marks: [], log: false, fromZero: false, hint: ""}, options);
    this.figure = put(parent, "figure", {"data-chart": this.id});
    this.caption();
    this.legend();
    this.svg = draw(this.figure, "svg", {role: "img", "aria-label": this.title});
    this.reading = put(this.figure, "div", {class: "reading"}, this.hint);
    this.listen();
  }

  caption() {
    const caption = put(this.figure, "figcaption");
    put(caption, "h3", {}, this.title);
    put(caption, "span", {class: "space"});
    const low = Math.min(...this.lines.map((line) => leastOf(line.data)));
    if (!(low > 0) || this.stacked) return;
    const button = put(caption, "button", {type: "button", "aria-pressed": String(this.log)}, "log");
    button.addEventListener("click", () => {
      this.log = !this.log;
      button.setAttribute("aria-pressed", String(this.log));
      this.render();
    });
  }

  legend() {
    const legend = put(this.figure, "div", {class: "legend"});
    this.lines.forEach((line, index) => {
      const entry = put(legend, "span");
      put(entry, "span", {class: "key", style: `background: ${color(line.color ?? index)}`});
      entry.append(line.label);
      put(entry, "span", {class: "last"}, formats[this.format](lastOf(line.data)));
    });
  }

  listen() {
    let from = null;
    this.svg.addEventListener("pointermove", (event) => {
      readAll(this.stepAt(event));
      if (from !== null) this.choose(from, this.stepAt(event));
    });
    this.svg.addEventListener("pointerleave", () => readAll(null));
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      from = this.stepAt(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = this.stepAt(event);
      const begin = Math.min(from, to);
      const end = Math.max(from, to);
      from = null;
      if (end - begin > (shown.most - shown.least) / 100) show(begin, end);
      else this.choose(0, 0);
    });
    this.svg.addEventListener("dblclick", () => show(steps.least, steps.most));
  }

  stepAt(event) {
    const place = this.svg.getBoundingClientRect();
    const part = (event.clientX - place.left - this.left) / (this.right - this.left);
    return shown.least + Math.min(1, Math.max(0, part)) * (shown.most - shown.least);
  }

  x(step) {
    return this.left + ((step - shown.least) / (shown.most - shown.least)) * (this.right - this.left);
  }

  y(value) {
    const [low, high] = this.range;
    const part = this.log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    return this.bottom - part * (this.bottom - this.top);
  }

  // The points of a line in what is shown, and one beyond at either side.
  part(data) {
    let begin = 0, end = data.x.length;
    while (begin + 1 < end && (data.x1 ?? data.x)[begin + 1] < shown.least) ++begin;
    while (end - 1 > begin && data.x[end - 2] > shown.most) --end;
    return [begin, end];
  }

  valuesShown() {
    const values = [];
    for (const line of this.lines) {
      const [begin, end] = this.part(line.data);
      const {y, lo, hi} = line.data;
      for (let i = begin; i < end; ++i) {
        if (this.stacked) values.push(line.top[i]);
        else values.push(...(lo ? [lo[i], hi[i]] : [y[i]]));
      }
    }
    return values;
  }

  render() {
    const place = this.svg.getBoundingClientRect();
    this.width = Math.max(place.width || 560, 200);
    this.height = Math.max(place.height || 230, 120);
    Object.assign(this, {left: 62, right: this.width - 10, top: 10, bottom: this.height - 26});
    if (this.stacked) stack(this.lines);
    this.range = rangeOf(this.valuesShown(), this.log, this.fromZero || this.stacked);
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.axes();
    const id = `inside-${this.id}`;
    draw(draw(this.svg, "clipPath", {id}), "rect", {
      x: this.left, y: this.top - 4, width: this.right - this.left, height: this.bottom - this.top + 8,
    });
    const inside = draw(this.svg, "g", {"clip-path": `url(#${id})`});
    this.lines.forEach((line, index) => this.line(inside, line, color(line.color ?? index)));
    this.ticks(inside);
    this.chosen = draw(inside, "rect", {class: "chosen", y: this.top, width: 0, height: this.bottom - this.top});
    this.cursor = draw(inside, "line", {class: "cursor", y1: this.top, y2: this.bottom, visibility: "hidden"});
  }

  axes() {
    const base = this.format === "bytes" ? 1024 : 10;
    const [low, high] = this.range;
    for (const tick of this.log ? logTicks(low, high) : linearTicks(low, high, 5, base)) {
      const y = this.y(tick);
      draw(this.svg, "line", {class: "grid", x1: this.left, x2: this.right, y1: y, y2: y});
      draw(this.svg, "text", {x: this.left - 8, y: y + 4, "text-anchor": "end"}, formats[this.format](tick));
    }
    draw(this.svg, "line", {class: "axis", x1: this.left, x2: this.right, y1: this.bottom, y2: this.bottom});
    const room = Math.max(2, Math.floor((this.right - this.left) / 90));
    for (const tick of linearTicks(shown.least, shown.most, room)) {
      if (!Number.isInteger(tick)) continue;
      const x = this.x(tick);
      draw(this.svg, "line", {class: "axis", x1: x, x2: x, y1: this.bottom, y2: this.bottom + 4});
      const at = x > this.right - 16 ? "end" : "middle";
      draw(this.svg, "text", {x, y: this.bottom + 17, "text-anchor": at}, formats.count(tick));
    }
  }

  line(parent, line, stroke) {
    const {x, x1, y, lo, hi} = line.data;
    const [begin, end] = this.part(line.data);
    const drawable = (value) => isNumber(value) && !(this.log && value <= 0);
    const middle = (i) => this.x(x1 ? (x[i] + x1[i]) / 2 : x[i]);
    const at = (i, values) => `${middle(i).toFixed(1)},${this.y(values[i]).toFixed(1)}`;
    let least = Infinity, most = -Infinity, points = 0;
    const runs = [];  // of neighbours that can be drawn
    for (let i = begin, open = false; i < end; ++i) {
      if (!drawable(y[i])) {
        open = false;
        continue;
      }
      if (!open) runs.push([]);
      open = true;
      runs[runs.length - 1].push(i);
      ++points;
      least = Math.min(least, lo ? lo[i] : y[i]);
      most = Math.max(most, hi ? hi[i] : y[i]);
    }
    const group = draw(parent, "g", {
      "data-line": line.name, "data-points": points,
      "data-least": points ? least : "", "data-most": points ? most : "",
    });
    for (const part of runs) {
      if (this.stacked) {
        const over = part.map((i) => at(i, line.top));
        const under = part.map((i) => at(i, line.under)).reverse();
        draw(group, "path", {class: "area", d: `M${over.join("L")}L${under.join("L")}Z`, fill: stroke});
        continue;
      }
      if (lo && part.length > 1) {
        const inLog = (values) => (i) => at(i, this.log ? values.map((v) => Math.max(v, this.range[0])) : values);
        const over = part.map((i) => at(i, hi));
        const under = part.map(inLog(lo)).reverse();
        draw(group, "path", {class: "band", d: `M${over.join("L")}L${under.join("L")}Z`, fill: stroke, stroke});
      }
      let path = part.map((i) => at(i, y));
      if (line.step) {
        // Holds until the next one, and to the end of the run.
        path = part.flatMap((i, k) => (k ? [`${at(i, y).split(",")[0]},${at(part[k - 1], y).split(",")[1]}`, at(i, y)] : [at(i, y)]));
        path.push(`${this.x(steps.most).toFixed(1)},${at(part[part.length - 1], y).split(",")[1]}`);
      }
      const smooth = line.smooth && part.length >= 50;
      draw(group, "path", {class: smooth ? "curve raw" : "curve", d: `M${path.join("L")}`, stroke});
      if (smooth) {
        const means = runningMean(part.map((i) => y[i]));
        const curve = part.map((i, k) => `${middle(i).toFixed(1)},${this.y(means[k]).toFixed(1)}`);
        draw(group, "path", {class: "curve", d: `M${curve.join("L")}`, stroke});
      }
      if ((line.points && end - begin <= 80) || part.length === 1) {
        for (const i of part) draw(group, "circle", {cx: middle(i), cy: this.y(y[i]), r: 2.5, fill: stroke});
      }
    }
  }

  // Steps at the lower edge at which something was not finite or not applied.
  ticks(parent) {
    const places = new Set();
    for (const mark of this.marks) {
      for (const step of mark) {
        if (step >= shown.least && step <= shown.most) places.add(this.x(step).toFixed(1));
      }
    }
    const group = draw(parent, "g", {"data-marks": places.size});
    for (const x of places) {
      draw(group, "path", {class: "bad", d: `M${x},${this.bottom - 7}l3.5,7h-7z`});
    }
  }

  choose(from, to) {
    const x = this.x(Math.min(from, to));
    this.chosen.setAttribute("x", x);
    this.chosen.setAttribute("width", from === to ? 0 : this.x(Math.max(from, to)) - x);
  }

  read(step) {
    this.cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step === null) {
      this.reading.textContent = this.hint;
      return;
    }
    this.cursor.setAttribute("x1", this.x(step));
    this.cursor.setAttribute("x2", this.x(step));
    const texts = [];
    for (const line of this.lines) {
      const i = nearest(line.data, step, line.step);
      if (i < 0) continue;
      const {x, x1, y, lo, hi} = line.data;
      const value = formats[this.format](y[i]);
      const spread = lo && lo[i] !== hi[i] ? ` (${formats[this.format](lo[i])} to ${formats[this.format](hi[i])})` : "";
      const where = x1 && x1[i] !== x[i] ? `${whole(x[i])} to ${whole(x1[i])}` : whole(x[i]);
      texts.push((texts.length === 0 || line.points ? `step ${where}: ` : "") + `${line.label} ${value}${spread}`);
    }
    this.reading.textContent = texts.join(" · ");
  }
}

const lastOf = (data) => data.y.findLast(isNumber);
const leastOf = (data) => (data.lo ?? data.y).reduce((least, v) => (isNumber(v) && v < least ? v : least), Infinity);

const mostOf = (data) => (data.hi ?? data.y).reduce((most, v) => (isNumber(v) && v > most ? v : most), -Infinity);

// The point nearest to a step; of values that hold, the one before it.
function nearest(data, step, holds) {
  let low = 0, high = data.x.length - 1;
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (data.x[middle] <= step) low = middle;
    else high = middle - 1;
  }
  const end = (data.x1 ?? data.x)[low];
  const next = low + 1 < data.x.length && data.x[low + 1] - step < step - end;
  return !holds && next ? low + 1 : low;
}

// Means over the neighbours of each value, a fortieth of all.
function runningMean(values) {
  const reach = Math.max(2, Math.round(values.length / 80));
  const sums = [0];
  for (const value of values) sums.push(sums[sums.length - 1] + value);
  return values.map((_, i) => {
    const begin = Math.max(0, i - reach);
    const end = Math.min(values.length, i + reach + 1);
    return (sums[end] - sums[begin]) / (end - begin);
  });
}

// Sums of neighbouring lines, which have the same points.
function stack(lines) {
  let under = lines[0].data.x.map(() => 0);
  for (const line of lines) {
    line.under = under;
    line.top = line.data.y.map((value, i) => under[i] + (isNumber(value) ? value : 0));
    under = line.top;
  }
}

function readAll(step) {
  for (const chart of charts) chart.read(step);
}

function show(least, most) {
  shown = {least, most};
  for (const chart of charts) chart.render();
}

function addChart(parent, options) {
  options.lines = options.lines.filter((line) => (line.data = line.data ?? series[line.name]) && line.data.x.length > 0);
  if (options.lines.length > 0) charts.push(new Chart(parent, options));
}

// ---- What is drawn ----

// Whether the values differ so much that a linear axis would hide most of them.
const isWide = (data) => data !== undefined && leastOf(data) > 0 && mostOf(data) > 30 * leastOf(data);
const marksOf = (...names) => names.map((name) => series[name]?.bad ?? []);

function skippedSteps() {
  const data = series.skipped;
  if (!data) return [];
  return data.x.filter((_, i) => (data.hi ?? data.y)[i] > 0);
}

function stepTimes(parent) {
  const phases = ["forward", "backward", "update"].filter((name) => series[name]);
  const alike = phases.length > 0 && phases.every((name) => series[name].x.length === series[phases[0]].x.length);
  if (!alike) {
    addChart(parent, {
      id: "time", title: "Time of a step", format: "seconds", fromZero: true,
      lines: [{name: "seconds", label: "step", smooth: true}],
      hint: "\"wall_clock_breakdown\": true in the configuration shows forward, backward and update",
    });
    return;
  }
  const lines = phases.map((name) => ({name, label: name}));
  const all = series.seconds;
  if (all && all.x.length === series[phases[0]].x.length) {
    const rest = all.y.map((value, i) =>
      isNumber(value) ? Math.max(0, value - phases.reduce((sum, name) => sum + (series[name].y[i] ?? 0), 0)) : null);
    lines.push({name: "rest", label: "rest", color: 7, data: {x: all.x, x1: all.x1, y: rest}});
  }
  addChart(parent, {id: "time", title: "Time of a step", format: "seconds", stacked: true, lines});
}

function memoryLines() {
  const tags = Object.keys(series).filter((name) => name.startsWith("memory/"));
  const most = (name) => lastOf(series[name]) ?? 0;
  return tags.sort((a, b) => most(b) - most(a)).map((name) => ({
    name, label: name.slice("memory/".length).replaceAll("_", " "), step: name !== "memory/peak of the step",
  }));
}

function drawCharts() {
  const parent = document.getElementById("charts");
  const skipped = skippedSteps();
  addChart(parent, {
    id: "loss", title: "Loss", marks: [...marksOf("loss", "valid_loss"), skipped],
    lines: [{name: "loss", label: "training", smooth: true}, {name: "valid_loss", label: "evaluation", points: true}],
  });
  addChart(parent, {id: "lr", title: "Learning rate", fromZero: true, lines: [{name: "lr", label: "rate"}]});
  addChart(parent, {
    id: "grad_norm", title: "Gradient norm", log: isWide(series.grad_norm), marks: [...marksOf("grad_norm"), skipped],
    lines: [{name: "grad_norm", label: "before clipping", color: 3, smooth: true}],
  });
  addChart(parent, {
    id: "tokens_per_s", title: "Speed", format: "count", fromZero: true,
    lines: [{name: "tokens_per_s", label: "tokens per second", color: 2, smooth: true}],
  });
  stepTimes(parent);
  addChart(parent, {
    id: "memory", title: "Most memory so far, by use", format: "bytes", fromZero: true, lines: memoryLines(),
    hint: "uses have their peaks at different moments: their sum may be above the total",
  });
  addChart(parent, {
    id: "loss_scale", title: "Loss scale and skipped steps", log: true, format: "count", marks: [skipped],
    lines: [{name: "loss_scale", label: "loss scale", color: 5}],
  });
  addChart(parent, {
    id: "sent", title: "Sent by the first process per step", format: "bytes", fromZero: true,
    lines: [{name: "sent_within_node", label: "within the node"}, {name: "sent_across_nodes", label: "across nodes"}],
  });
  addChart(parent, {
    id: "tflops", title: "TFLOPS per process", fromZero: true,
    lines: [{name: "tflops", label: "6N"}, {name: "tflops_megatron", label: "Megatron's formula"}],
  });
  for (const chart of charts) chart.render();
}

function header() {
  document.getElementById("name").textContent = run.name;
  const parts = [];
  if (about.model?.model_type) parts.push(String(about.model.model_type));
  if (isNumber(about.parameters)) {
    const trained = about.trained_parameters < about.parameters ? `, ${formats.count(about.trained_parameters)} trained` : "";
    parts.push(`${formats.count(about.parameters)} parameters${trained}`);
  }
  const config = about.configuration?.config ?? {};
  if (config.optimizer?.type) parts.push(String(config.optimizer.type));
  if (about.configuration) parts.push(config.bf16?.enabled ? "bf16" : config.fp16?.enabled ? "fp16" : "fp32");
  if (isNumber(config.train_batch_size)) parts.push(`batch ${config.train_batch_size} × ${about.sequence_length} tokens`);
  if (isNumber(about.ranks)) parts.push(`${about.ranks} ${about.ranks === 1 ? "process" : "processes"} on ${about.device}`);
  document.getElementById("about").textContent = parts.join(" · ");
  const more = [`metrics ${run.metrics}`];
  if (about.data) more.push(`data ${about.data}`);
  if (isNumber(about.seed)) more.push(`seed ${about.seed}`);
  if (about.started) more.push(`started ${about.started}`);
  document.getElementById("more").textContent = more.join(" · ");
  document.getElementById("footer").textContent = `Written by ds ${run.ds}, ${run.viewed}`;
  const notes = document.getElementById("notes");
  notes.hidden = run.notes.length === 0;
  for (const note of run.notes) put(notes, "li", {}, note);
}

function tile(label, value, under = "", bad = false) {
  const card = put(document.getElementById("tiles"), "div", {class: bad ? "tile bad" : "tile"});
  put(card, "div", {class: "label"}, label);
  put(card, "div", {class: "value"}, value);
  put(card, "div", {class: "under"}, under);
}

function tiles() {
  const values = summary.values;
  const goal = isNumber(about.to_step) && about.to_step > summary.last_step ? `of ${whole(about.to_step)}` : "";
  tile("Steps", whole(summary.last_step), goal);
  if (values.loss) tile("Loss", plain(values.loss.last), `least ${plain(values.loss.least)}`);
  const best = summary.best_evaluation;
  if (best) tile("Best evaluation", plain(best.loss), `at step ${whole(best.step)}`);
  if (values.tokens_per_s) {
    const mean = summary.tokens_per_s ?? values.tokens_per_s.mean;
    tile("Tokens per second", formats.count(mean), `at most ${formats.count(values.tokens_per_s.most)}`);
  }
  if (isNumber(summary.tokens)) tile("Tokens", formats.count(summary.tokens), "");
  if (isNumber(summary.seconds)) tile("Time in steps", duration(summary.seconds), "");
  const memory = values["memory/total"] ?? values["memory/peak of the step"];
  if (memory) tile("Most memory", formats.bytes(memory.most), "");
  if (isNumber(summary.skipped)) {
    tile("Skipped steps", whole(summary.skipped), summary.skipped > 0 ? "not applied" : "", summary.skipped > 0);
  }
}

// ---- Tables ----

// `columns`: [title, text of a row, whether it is a number].
function table(parent, title, columns, rows, hint = "") {
  if (rows.length === 0) return;
  put(parent, "h2", {}, title);
  if (hint) put(parent, "p", {class: "hint"}, hint);
  const grid = put(put(parent, "div", {class: "table", "data-table": title}), "table");
  const head = put(put(grid, "thead"), "tr");
  for (const [name, , number] of columns) put(head, "th", number ? {class: "number"} : {}, name);
  const body = put(grid, "tbody");
  for (const row of rows) {
    const line = put(body, "tr");
    for (const [, text, number] of columns) put(line, "td", number ? {class: "number"} : {}, text(row));
  }
}

function tables() {
  const parent = document.getElementById("tables");
  table(parent, "Checkpoints", [
    ["checkpoint", (row) => row.tag],
    ["step", (row) => whole(row.step), true],
    ["samples", (row) => whole(row.samples), true],
    ["size", (row) => formats.bytes(row.bytes), true],
    ["saved by", (row) => (isNumber(row.ranks) ? `${row.ranks} ${row.ranks === 1 ? "process" : "processes"}, ZeRO ${row.zero_stage}` : "")],
    ["written", (row) => row.written ?? ""],
    ["", (row) => row.problem ?? ""],
  ], [...run.checkpoints].reverse());
  table(parent, "Evaluations", [
    ["step", (row) => whole(row.step), true],
    ["loss", (row) => (row.loss === null ? "not finite" : plain(row.loss, 6)), true],
    ["perplexity", (row) => (row.loss === null ? "" : plain(Math.exp(row.loss))), true],
    ["", () => ""],
  ], run.evaluations.slice(-20).reverse(), run.evaluations.length > 20 ? "the last 20; the chart has all of them" : "");
  table(parent, "Skipped steps", [
    ["step", (row) => whole(row.step), true],
    ["why", (row) => row.reason.replaceAll("_", " ")],
    ["first in", (row) => row.tensor],
    ["element", (row) => whole(row.element), true],
    ["value", (row) => row.value],
  ], run.skips, summary.skipped > run.skips.length ? `the first ${run.skips.length} of ${whole(summary.skipped)}` : "");
  configuration(parent);
}

function documentOf(parent, title, value, open = false) {
  if (value === undefined || value === null) return;
  const box = put(parent, "details", open ? {open: ""} : {});
  put(box, "summary", {}, title);
  put(box, "pre", {}, JSON.stringify(value, null, 2));
}

function valueAt(config, pointer) {
  let value = config;
  for (const name of pointer.split("/").slice(1)) value = value?.[name.replaceAll("~1", "/").replaceAll("~0", "~")];
  return value;
}

function configuration(parent) {
  const {config, given, origins, warnings} = about.configuration ?? {};
  if (!config && !about.model) return;
  put(parent, "h2", {}, "Configuration");
  const rows = Object.entries(origins ?? {}).filter(([, origin]) => origin !== "default")
    .map(([path, origin]) => ({path, origin, value: valueAt(config, path)}))
    .filter((row) => row.value === null || typeof row.value !== "object" || Array.isArray(row.value));
  documentOf(parent, "As given", given, true);
  documentOf(parent, "As resolved: every key with the value that the run used", config);
  documentOf(parent, "Warnings", warnings?.length ? warnings : null);
  documentOf(parent, "The model's config.json", about.model);
  table(parent, "Values that are not defaults", [
    ["key", (row) => row.path],
    ["value", (row) => JSON.stringify(row.value)],
    ["comes from", (row) => String(row.origin)],
  ], rows);
}

header();
tiles();
drawCharts();
tables();
let wait = 0;
window.addEventListener("resize", () => {
  clearTimeout(wait);
  wait = setTimeout(() => show(shown.least, shown.most), 100);
});
document.body.dataset.drawn = String(charts.length);
})();
