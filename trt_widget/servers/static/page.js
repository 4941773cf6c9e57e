// The page of `trt-widget serve`: the builds of this server, and the tree of one of them while it builds.
//
// The token comes in the address's fragment, which no browser sends anywhere, and stays in the tab's sessionStorage,
// which no other origin can read: not another port of this machine either, as a cookie could be. EventSource and links
// cannot send it, so they use the addresses that the server gives for reading one build. What comes from a model or
// from TensorRT goes through `textContent` or an attribute.

import { Stream, chooseRows, secondsOf, statusOf } from "./stream.js";

/** @import { Phase, PhaseStatus, Status, StreamEvent } from "./stream.js" */

/**
 * What the server says of a build.
 *
 * @typedef {object} Build
 * @property {string} id
 * @property {string} name
 * @property {Status} status
 * @property {number} created in epoch seconds
 * @property {number | null} progress
 * @property {number} elapsed_s since it began to run
 * @property {number} grace_s how long a cancel waits for TensorRT
 * @property {Record<"events" | "timings" | "log" | "engine" | "report", string>} links
 */

const KEY = "trt-widget token";
const LIST_MS = 2000;
const DRAW_MS = 100;
const TICK_MS = 250;
/** The state is told aloud no more often than this. */
const RARELY_MS = 20_000;
const MAX_ROWS = 40;
/** After a connection that the server has refused. */
const AGAIN_MS = 5000;

/** @type {Record<Status | PhaseStatus, readonly [sign: string, word: string]>} */
const STATUS = {
  pending: ["○", "Pending"],
  running: ["●", "Running"],
  cancelling: ["■", "Cancelling…"],
  succeeded: ["✓", "Succeeded"],
  cancelled: ["■", "Cancelled"],
  failed: ["✕", "Failed"],
  ended: ["–", "Ended"],
  done: ["✓", "Done"],
};

/** @type {Record<string, string>} */
const BACKENDS = { tensorrt: "TensorRT", tensorrt_rtx: "TensorRT for RTX" };

// ---------------------------------------------------------------------------------------------------- text and DOM

/** @template {HTMLElement} T @param {string} id @param {new () => T} kind @returns {T} */
function element(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`no ${id}`);
  return found;
}
const part = (/** @type {string} */ id) => element(id, HTMLElement);

/** @template {keyof HTMLElementTagNameMap} K @param {K} tag @param {string} [className] @returns {HTMLElementTagNameMap[K]} */
function make(tag, className) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  return made;
}

/** @param {Element} at @param {string} text */
function setText(at, text) {
  if (at.textContent !== text) at.textContent = text;
}

/** @param {Element} at @param {string} name @param {string | null} value */
function setAttribute(at, name, value) {
  if (value === null) at.removeAttribute(name);
  else if (at.getAttribute(name) !== value) at.setAttribute(name, value);
}

/** @param {HTMLElement} at @param {string} text */
function say(at, text) {
  setText(at, text);
  at.hidden = !text;
}

/** @param {HTMLElement} list @param {string[]} lines */
function setLines(list, lines) {
  while (list.children.length > lines.length) list.lastElementChild?.remove();
  lines.forEach((line, i) => setText(list.children[i] ?? list.appendChild(make("li")), line));
}

/** @param {number} seconds */
function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s === 0) return "0 s";
  if (s < 0.001) return `${Math.max(1, Math.round(s * 1e6))} µs`;
  if (s < 0.1) return `${Math.round(s * 1000)} ms`;
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
  const two = (/** @type {number} */ n) => String(Math.floor(n)).padStart(2, "0");
  return s < 3600 ? `${Math.floor(s / 60)}:${two(s % 60)}` : `${Math.floor(s / 3600)}:${two((s / 60) % 60)}:${two(s % 60)}`;
}

/** A time that is a round number, or only an estimate. @param {number} seconds */
function rough(seconds) {
  return seconds < 60 ? `${Number(seconds.toFixed(1))} s` : duration(seconds);
}

/** @param {number} bytes */
function size(bytes) {
  if (bytes < 1e6) return `${(bytes / 1e3).toFixed(1)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** Fill a bar. @param {HTMLElement} bar @param {number | null} fraction null where it is not known @param {string} words */
function fill(bar, fraction, words) {
  const percent = fraction === null ? null : Math.round(Math.min(1, Math.max(0, fraction)) * 1000) / 10;
  bar.toggleAttribute("data-unknown", percent === null);
  bar.style.setProperty("--part", `${percent ?? 0}%`);
  setAttribute(bar, "aria-valuenow", percent === null ? null : String(Math.floor(percent)));
  setAttribute(bar, "aria-valuetext", words);
}

// -------------------------------------------------------------------------------------------------------- the server

let token = "";

class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path @param {RequestInit} [options] @returns {Promise<any>} */
async function ask(path, options = {}) {
  const headers = { ...options.headers, Authorization: `Bearer ${token}` };
  const response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  const text = await response.text();
  if (response.ok) return text ? JSON.parse(text) : null;
  let message = `${response.status} ${response.statusText}`;
  try {
    const { cause, remedy } = JSON.parse(text);
    message = [cause, remedy].filter(Boolean).join(" ") || message;
  } catch {
    // Not an answer of this server's own.
  }
  throw new Refused(response.status, message);
}

const NO_ANSWER = "The server does not answer.";

/** Do something for the person, and say what goes wrong. @param {() => Promise<void>} action */
async function attempt(action) {
  say(part("alert"), "");
  await carefully(action);
}

/** Do something, and say what goes wrong; what was said before stays. @param {() => Promise<void>} action */
async function carefully(action) {
  try {
    await action();
    if (part("alert").textContent === NO_ANSWER) say(part("alert"), "");
  } catch (error) {
    if (error instanceof Refused && error.status === 401) logOut(error.message);
    else say(part("alert"), error instanceof Refused ? error.message : NO_ANSWER);
  }
}

// --------------------------------------------------------------------------------------------------- one build's view

class Row {
  constructor() {
    this.item = make("li");
    this.name = make("span", "phase");
    this.sign = make("span", "sign");
    this.sign.setAttribute("aria-hidden", "true");
    this.label = make("bdi");
    this.label.dir = "auto";
    this.times = make("span", "times");
    this.name.append(this.sign, this.label, this.times);
    this.bar = make("div", "bar");
    for (const [name, value] of [["role", "progressbar"], ["aria-valuemin", "0"], ["aria-valuemax", "100"]]) {
      this.bar.setAttribute(/** @type {string} */ (name), /** @type {string} */ (value));
    }
    this.steps = make("span", "steps");
    this.time = make("span", "time");
    this.item.append(this.name, this.bar, this.steps, this.time);
  }

  /** @param {Phase} phase @param {number} now */
  show(phase, now) {
    const status = statusOf(phase);
    setAttribute(this.item, "data-status", status);
    setText(this.sign, STATUS[status][0]);
    setText(this.label, phase.name);
    setAttribute(this.name, "title", phase.name);
    setAttribute(this.bar, "aria-label", phase.name);
    setText(this.times, phase.count > 1 ? ` ×${phase.count.toLocaleString("en-US")}` : "");
    this.item.style.setProperty("--depth", String(phase.depth));
    const known = phase.steps > 0;
    const fraction = status === "done" ? 1 : known ? phase.step / phase.steps : status === "running" ? null : 0;
    const seconds = duration(secondsOf(phase, now));
    // TensorRT skips steps: those of a phase that is done say nothing.
    const steps = known && status !== "done" ? `${Math.min(phase.step, phase.steps)} / ${phase.steps}` : "";
    fill(this.bar, fraction, [STATUS[status][1], steps, seconds].filter(Boolean).join(", "));
    setText(this.steps, steps);
    setText(this.time, seconds);
  }
}

/** Seconds that a build took. @param {StreamEvent} end @returns {number} */
function tookOf(end) {
  return end.facts.duration_s ?? end.time;
}

class View {
  stream = new Stream();
  /** @type {Build | null} */
  build = null;
  /** @type {EventSource | null} */
  #source = null;
  /** @type {Map<string, Row>} */
  #rows = new Map();
  /** When the stream's time was zero, by the clock here: the least of what messages say, which can only be late. */
  #zero = Infinity;
  #drawing = false;
  #asked = false;
  #spoken = ["", -Infinity];

  constructor() {
    setInterval(() => this.build && !this.stream.end && !document.hidden && this.draw(), TICK_MS);
    part("cancel").addEventListener("click", () => this.#cancel());
    part("remove").addEventListener("click", () => this.#remove());
    // A browser has six connections to a server, for all its tabs: one that nobody looks at needs none.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#disconnect() : this.#connect()));
  }

  /** @param {Build | null} build */
  open(build) {
    this.#disconnect();
    this.build = build;
    this.#reset();
    this.#asked = false;
    part("build").hidden = build === null;
    this.#drawRows(0);
    if (!build) return;
    this.stream.name = build.name;
    this.#link("report", build.links.report);
    this.#link("timings", `${build.links.timings}&format=csv`);
    this.#link("log", build.links.log);
    this.#link("engine", build.links.engine);
    this.draw();
    this.#connect();
  }

  /** @param {string} id @param {string} address */
  #link(id, address) {
    element(id, HTMLAnchorElement).href = address;
  }

  #reset() {
    this.stream = new Stream();
    this.#zero = Infinity;
  }

  /** Whether the end of the build that is shown is known, or still to come. */
  get holds() {
    return this.stream.end !== null || this.#source?.readyState === EventSource.OPEN;
  }

  #disconnect() {
    this.#source?.close();
    this.#source = null;
  }

  #connect() {
    if (!this.build || this.#source || this.stream.end) return;
    const source = (this.#source = new EventSource(this.build.links.events));
    source.addEventListener("open", () => say(part("contact"), ""));
    source.addEventListener("batch", (event) => this.#take(event.data));
    source.addEventListener("snapshot", (event) => this.#take(event.data));
    source.addEventListener("end", () => {
      // Nothing comes after it. A source that is left open would ask again.
      this.#disconnect();
      void carefully(refresh);
    });
    source.addEventListener("error", () => {
      if (this.#source !== source) return;
      const refused = source.readyState === EventSource.CLOSED;
      say(part("contact"), refused ? "The server does not tell of this build any more." : "No connection to the server; trying again…");
      if (!refused) return;
      this.#disconnect();
      setTimeout(() => this.#source ?? this.#connect(), AGAIN_MS);
    });
  }

  /** @param {string} lines */
  #take(lines) {
    const { now: before, status } = this.stream;
    try {
      this.stream.take(lines);
    } catch (error) {
      say(part("alert"), `The stream cannot be read: ${error}`);
      return this.#disconnect();
    }
    // The clock starts when the build begins to run, not while it waits for its turn.
    if (status === "pending" || this.stream.now < before) this.#zero = Infinity;
    this.#hear(this.stream.status, this.stream.now);
    if (this.#drawing) return;
    this.#drawing = true;
    setTimeout(() => {
      this.#drawing = false;
      this.draw();
    }, DRAW_MS);
  }

  /** Take a reading of the stream's clock. @param {Status} status @param {number} time */
  #hear(status, time) {
    if (status !== "pending") this.#zero = Math.min(this.#zero, performance.now() / 1000 - time);
  }

  /** Take what the list says of this build now: the stream tells no time while TensorRT is silent. @param {Build} build */
  update(build) {
    if (this.stream.status !== "pending") this.#hear(build.status, build.elapsed_s);
  }

  #now() {
    const { end, now } = this.stream;
    return end || this.#zero === Infinity ? now : Math.max(now, performance.now() / 1000 - this.#zero);
  }

  /** How a build of the list stands; of the one that is shown, as it is shown. @param {Build} build */
  state(build) {
    const { stream } = this;
    // Until the stream has come, what the list says; from the click on, what was asked for.
    const told = build.id === this.build?.id && (stream.now > 0 || stream.backend !== "");
    const asked = build.id === this.build?.id && this.#asked && !stream.end;
    const { status, progress } = told ? stream : build;
    return { status: asked ? /** @type {Status} */ ("cancelling") : status, progress };
  }

  draw() {
    const { build, stream } = this;
    if (!build) return;
    const now = this.#now();
    const { end } = stream;
    const { status } = this.state(build);
    setAttribute(part("build"), "data-status", status);
    setText(part("status"), STATUS[status].join(" "));
    setText(part("name"), stream.name);
    setText(part("elapsed"), end ? duration(tookOf(end)) : status === "pending" ? "" : duration(now));
    const [backend = "", ...version] = stream.backend.split(" ");
    setText(part("meta"), [[BACKENDS[backend] ?? backend, ...version].join(" "), end?.facts.device].filter(Boolean).join(" · "));
    const over = end !== null || ["succeeded", "cancelled", "failed", "ended"].includes(status);
    const cancel = part("cancel");
    setText(cancel, status === "cancelling" ? "Cancelling…" : "Cancel");
    setAttribute(cancel, "aria-disabled", status === "cancelling" ? "true" : null);
    cancel.hidden = over;
    this.#drawWhole(status);
    this.#drawRows(now);
    this.#drawEnd(end);
    this.#speak(status);
    drawChosen();
    part("engine").hidden = !end?.engine_bytes;
    if (end?.engine_bytes) setText(part("engine"), `Engine (${size(end.engine_bytes)})`);
    const { messages, left_out: more } = stream;
    part("words").hidden = messages.length === 0;
    setText(part("words-title"), `Warnings and errors (${messages.length + more})`);
    setLines(part("messages"), messages.map(({ severity, message }) => `${severity}: ${message}`));
  }

  /** @param {Status} status */
  #drawWhole(status) {
    const { progress, eta, exceeded, end, detail } = this.stream;
    const stopping = status === "cancelling";
    const fraction = end ? (end.status === "succeeded" ? 1 : (progress ?? 0)) : progress;
    const left = eta === null || end || stopping ? "" : `about ${rough(Math.max(1, Math.round(eta)))} left`;
    const more = exceeded && !end && !stopping ? "longer than earlier builds" : "";
    const percent = fraction === null || stopping ? "" : `${Math.floor(fraction * 100)} %`;
    fill(part("whole"), fraction, [STATUS[status][1], percent, left].filter(Boolean).join(", "));
    const grace = this.build?.grace_s ?? 0;
    const stop = grace > 0 ? `It stops at the next step, at the latest after ${rough(grace)}.` : "It is being ended.";
    say(part("left"), end ? "" : stopping ? stop : [percent, left, more, detail].filter(Boolean).join(" · "));
  }

  /** @param {number} now */
  #drawRows(now) {
    const { rows, more } = chooseRows(this.stream, MAX_ROWS);
    const list = part("rows");
    /** @type {Map<string, Row>} */
    const shown = new Map();
    rows.forEach((phase, i) => {
      const row = this.#rows.get(phase.key) ?? new Row();
      shown.set(phase.key, row);
      row.show(phase, now);
      if (list.children[i] !== row.item) list.insertBefore(row.item, list.children[i] ?? null);
    });
    for (const [key, row] of this.#rows) {
      if (!shown.has(key)) row.item.remove();
    }
    this.#rows = shown;
    say(part("more"), more ? `… and ${more} more` : "");
  }

  /** @param {StreamEvent | null} end */
  #drawEnd(end) {
    part("outcome").hidden = end === null;
    if (!end) return;
    const took = duration(tookOf(end));
    const { error } = end;
    const made = end.ended_by === "cached" ? `The engine is from the cache, after ${took}.` : `The engine was built in ${took}.`;
    setText(part("cause"), error ? error.cause : end.status === "succeeded" ? made : `It has ended after ${took}.`);
    const nodes = (error?.nodes ?? []).slice(0, 20).map(
      (/** @type {[number, string, string, string]} */ [node, name, operator, said]) => `node ${node} ${name} (${operator}): ${said}`,
    );
    const evidence = nodes.length > 0 ? nodes : (error?.evidence ?? []);
    say(part("details"), [...evidence, error?.user_traceback, error?.output].filter(Boolean).join("\n"));
    say(part("remedy"), error?.remedy ?? "");
    setLines(part("notes"), end.notes);
  }

  /** @param {Status} status */
  #speak(status) {
    const now = performance.now();
    const words = `${this.stream.name}: ${STATUS[status][1]}`;
    const { progress, end } = this.stream;
    const percent = progress === null || status !== "running" ? "" : `, ${Math.floor(progress * 100)} %`;
    const same = this.#spoken[0] === words;
    if (same && (end || !percent || now - Number(this.#spoken[1]) < RARELY_MS)) return;
    this.#spoken = [words, now];
    setText(part("spoken"), words + percent);
  }

  async #cancel() {
    const { build } = this;
    if (!build || this.#asked) return;
    this.#asked = true;
    this.draw();
    await attempt(() => ask(`builds/${build.id}/cancel`, { method: "POST" })).finally(() => {
      if (!part("alert").hidden) this.#asked = false;
      this.draw();
    });
  }

  async #remove() {
    const { build } = this;
    if (!build) return;
    if (!this.stream.end && !confirm("It still builds. Cancel it, and delete what it has come to?")) return;
    await attempt(async () => {
      await ask(`builds/${build.id}`, { method: "DELETE" });
      location.hash = "";
      await refresh();
    });
  }
}

// ------------------------------------------------------------------------------------------------------- all builds

const view = new View();
/** @type {Build[]} */
let builds = [];

/** @param {Element} button @param {Build} build */
function drawState(button, build) {
  const { status, progress } = view.state(build);
  setAttribute(button, "data-status", status);
  const far = status === "running" && progress !== null ? `${Math.floor(progress * 100)} %` : STATUS[status].join(" ");
  setText(/** @type {Element} */ (button.children[1]), far);
}

/** Have the list say of the build that is shown what its view says. */
function drawChosen() {
  const button = part("builds").querySelector("[aria-current]");
  const { build } = view;
  if (build && button instanceof HTMLElement && build.id === button.dataset["id"]) drawState(button, build);
}

/** @param {Build[]} list */
function drawList(list) {
  const at = part("builds");
  part("none").hidden = list.length > 0;
  while (at.children.length > list.length) at.lastElementChild?.remove();
  list.forEach((build, i) => {
    let item = at.children[i];
    if (!item) {
      item = at.appendChild(make("li"));
      const button = item.appendChild(make("button"));
      button.type = "button";
      const name = button.appendChild(make("bdi", "name"));
      name.dir = "auto";
      button.append(make("span", "pill"), make("span", "when"));
      button.addEventListener("click", () => (location.hash = `build=${button.dataset["id"]}`));
    }
    const button = /** @type {HTMLElement} */ (item.firstElementChild);
    const [name, , when] = /** @type {Iterable<HTMLElement>} */ (/** @type {unknown} */ (button.children));
    button.dataset["id"] = build.id;
    setAttribute(button, "aria-current", build.id === view.build?.id ? "true" : null);
    setText(/** @type {HTMLElement} */ (name), build.name);
    drawState(button, build);
    setText(/** @type {HTMLElement} */ (when), new Date(build.created * 1000).toLocaleString());
  });
}

/** Show what the address names; without a name the newest. */
function choose() {
  const named = new URLSearchParams(location.hash.slice(1)).get("build");
  const listed = builds.find(({ id }) => id === named) ?? (named ? null : builds[0]) ?? null;
  // A server that ends forgets its builds a moment before their streams are at their end.
  const held = view.holds && (!named || named === view.build?.id) ? view.build : null;
  const wanted = listed ?? held;
  if (wanted?.id !== view.build?.id) view.open(wanted);
  if (wanted) view.update(wanted);
  drawList(builds);
}

async function refresh() {
  builds = (await ask("builds")).builds;
  choose();
}

// ------------------------------------------------------------------------------------------------------ coming and going

/** @param {string} why */
function logOut(why) {
  token = "";
  sessionStorage.removeItem(KEY);
  view.open(null);
  for (const id of ["main", "upload"]) part(id).hidden = true;
  part("login").hidden = false;
  say(part("alert"), why);
  element("token", HTMLInputElement).focus();
}

/** @param {string} given */
async function logIn(given) {
  token = given;
  await attempt(async () => {
    await refresh();
    sessionStorage.setItem(KEY, token);
    part("login").hidden = true;
    for (const id of ["main", "upload"]) part(id).hidden = false;
  });
}

/** Ask for the list as long as somebody looks. */
async function poll() {
  if (token && !document.hidden && !part("main").hidden) await carefully(refresh);
  setTimeout(poll, LIST_MS);
}

part("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = element("token", HTMLInputElement);
  void logIn(field.value.trim());
  field.value = "";
});

part("upload").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = element("file", HTMLInputElement);
  const file = field.files?.[0];
  if (!file) return;
  void attempt(async () => {
    const headers = { "Content-Type": "application/octet-stream" };
    const started = await ask(`builds?name=${encodeURIComponent(file.name.slice(0, 200))}`, { method: "POST", body: file, headers });
    field.value = "";
    location.hash = `build=${started.id}`;
    await refresh();
  });
});

window.addEventListener("hashchange", () => {
  if (takeToken()) return;
  choose();
  // A link to a build that is newer than the list.
  if (!view.build && token) void carefully(refresh);
});

/** Take the token out of the address, also out of the tab's history. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = given.get("token");
  if (!found) return false;
  given.delete("token");
  history.replaceState(null, "", given.size ? `#${given}` : location.pathname);
  void logIn(found);
  return true;
}

if (!takeToken()) {
  const kept = sessionStorage.getItem(KEY);
  if (kept) void logIn(kept);
  else logOut("");
}
void poll();
