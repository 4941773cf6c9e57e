// What a build's stream comes to: a fold of its events into the tree of its phases, as trt_widget/phases.py has it. No
// page in here, no clock, and nothing that is not in an event.

/** @typedef {"pending" | "running" | "cancelling" | "succeeded" | "cancelled" | "failed" | "ended"} Status */
/** @typedef {"running" | "done" | "cancelled" | "failed" | "ended"} PhaseStatus */
/** @typedef {Record<string, any> & {event: string, time: number}} StreamEvent a line of the stream; see `trt-widget schema` */

/**
 * All instances of one path.
 *
 * @typedef {object} Phase
 * @property {string} key its path, the same after a snapshot
 * @property {string} name foreign text
 * @property {Phase | null} parent
 * @property {Map<string, Phase>} children
 * @property {number} depth
 * @property {number} count of instances, with the open ones
 * @property {number} open instances that are open
 * @property {number} total seconds of the finished instances
 * @property {number} started start of the latest instance
 * @property {number} ended end of the latest finished instance; -1 for never
 * @property {number} step completed steps of the latest instance
 * @property {number} steps announced steps of the latest instance; below 1 they are not known
 * @property {PhaseStatus} last status of the latest finished instance
 */

/** @typedef {{phase: Phase, name: string, parent: Open | null, thread: number, start: number, step: number}} Open */
/** @typedef {{time: number, severity: string, message: string}} Message */

/** Messages that are kept: the first ones say what went wrong, as a rule, and the last ones what came of it. */
const MOST_MESSAGES = 100;

export class Stream {
  name = "";
  backend = "";
  /** @type {Status} */
  status = "pending";
  /** @type {string | null} */
  detail = null;
  /** Time of the latest event. */
  now = 0;
  /** @type {number | null} */
  progress = null;
  /** @type {number | null} */
  eta = null;
  exceeded = false;
  /** TensorRT's warnings and errors. @type {Message[]} */
  messages = [];
  left_out = 0;
  /** The last event of the stream. @type {StreamEvent | null} */
  end = null;
  /** @type {Map<string, Phase>} */
  roots = new Map();
  /** Open instances in the order of their starts. @type {Open[]} */
  open = [];
  /** What has ended since anything started: it gets the outcome of a build that ends now. @type {Set<Phase>} */
  unwound = new Set();
  /** Whether TensorRT knows of a cancel. */
  delivered = false;

  /** Take in JSON Lines. @param {string} lines */
  take(lines) {
    for (const line of lines.split("\n")) {
      if (line) this.#take(JSON.parse(line));
    }
  }

  /** @param {StreamEvent} event */
  #take(event) {
    if (event.event === "stream_start") {
      Object.assign(this, new Stream());
      this.name = event.model;
      this.backend = `${event.backend} ${event.backend_version}`.trim();
    }
    // The clock of the stream starts anew when the build begins to run.
    const begins = event.event === "status" && event.status === "running" && this.roots.size === 0;
    this.now = begins ? event.time : Math.max(this.now, event.time);
    switch (event.event) {
      case "phase_start":
        return this.#start(event.phase, event.parent, event.num_steps, event.thread, event.time);
      case "step_complete":
        return this.#step(event.phase, event.step, event.thread);
      case "phase_finish":
        return this.#finish(this.#match(event.phase, event.thread), event.time);
      case "phases":
        return this.#run(event);
      case "phases_collapsed":
        return this.#collapse(event);
      case "snapshot":
        return this.#restore(event);
      case "cancel_delivered":
        if (!this.delivered) this.unwound.clear();
        this.delivered = true;
        return;
      case "log":
        if (event.severity === "info" || event.severity === "verbose") return;
        if (this.messages.length < MOST_MESSAGES) {
          this.messages.push({ time: event.time, severity: event.severity, message: event.message });
        } else this.left_out++;
        return;
      case "estimate":
        // What a cancelled build still does brings it no nearer to an engine.
        if (this.status === "cancelling") return;
        [this.progress, this.eta, this.exceeded] = [event.progress, event.eta_s, event.exceeded];
        return;
      case "status":
        [this.status, this.detail] = [event.status, event.detail];
        return;
      case "end":
        return this.#conclude(event);
    }
  }

  /** @param {Phase | null} parent @param {string} name @returns {Phase} */
  #phase(parent, name) {
    const siblings = parent?.children ?? this.roots;
    let phase = siblings.get(name);
    if (!phase) {
      const depth = parent ? parent.depth + 1 : 0;
      phase = {
        ...{ key: JSON.stringify([parent?.key, name]), name, parent, depth, children: new Map(), count: 0, open: 0, total: 0 },
        ...{ started: 0, ended: -1, step: 0, steps: 0, last: "done" },
      };
      siblings.set(name, phase);
    }
    return phase;
  }

  /** The open instance that is meant: the latest of this thread, else the latest. @param {string | null} name @param {number} thread */
  #match(name, thread) {
    const named = this.open.filter((entry) => entry.name === name);
    return named.filter((entry) => entry.thread === thread).at(-1) ?? named.at(-1) ?? null;
  }

  /** @param {string} name @param {string | null} above @param {number} steps @param {number} thread @param {number} start */
  #start(name, above, steps, thread, start) {
    if (!this.delivered) this.unwound.clear();
    const parent = above === null ? null : this.#match(above, thread);
    const phase = this.#phase(parent?.phase ?? null, name);
    phase.count++;
    phase.open++;
    [phase.started, phase.step, phase.steps] = [start, 0, steps];
    this.open.push({ phase, name, parent, thread, start, step: 0 });
  }

  /** @param {string} name @param {number} step @param {number} thread */
  #step(name, step, thread) {
    const entry = this.#match(name, thread);
    if (!entry || step < entry.step) return;
    if (!this.delivered) this.unwound.clear();
    entry.step = step + 1;
    if (entry === this.open.filter(({ phase }) => phase === entry.phase).at(-1)) entry.phase.step = entry.step;
  }

  /** @param {Open | null} entry @param {number} end */
  #finish(entry, end) {
    if (!entry) return;
    for (const child of this.open.filter(({ parent }) => parent === entry)) this.#finish(child, end);
    this.open.splice(this.open.indexOf(entry), 1);
    const { phase } = entry;
    phase.open--;
    phase.total += end - entry.start;
    [phase.ended, phase.last] = [end, "done"];
    this.unwound.add(phase);
  }

  /** A run of leaf phases. @param {StreamEvent} event */
  #run(event) {
    const parent = event.parent === null ? null : this.#match(event.parent, event.thread);
    const phase = this.#phase(parent?.phase ?? null, event.phase);
    const latest = event.starts.length - 1;
    phase.count += event.starts.length;
    for (let i = 0; i <= latest; i++) phase.total += event.ends[i] - event.starts[i];
    [phase.started, phase.ended, phase.last] = [event.starts[latest], event.ends[latest], "done"];
    if (!phase.open) [phase.step, phase.steps] = [event.last_steps[latest] + 1, event.num_steps[latest]];
    if (!this.delivered) this.unwound.clear();
    this.unwound.add(phase);
  }

  /** @param {StreamEvent} event */
  #collapse(event) {
    /** @type {Phase | null} */
    let phase = null;
    for (const name of event.path) phase = this.#phase(phase, name);
    if (!phase) return;
    phase.count += event.count;
    phase.total += event.total_s;
    phase.ended = event.time;
    if (!phase.open) phase.last = "done";
  }

  /** @param {StreamEvent} event */
  #restore(event) {
    this.roots = new Map();
    const { paths, open, unwound } = event;
    /** @type {Phase[]} */
    const phases = [];
    paths.name.forEach((/** @type {string} */ name, /** @type {number} */ i) => {
      const phase = this.#phase(phases[paths.parent[i]] ?? null, name);
      [phase.count, phase.total, phase.started, phase.ended] = [
        ...[paths.count[i], paths.total_s[i], paths.started[i], paths.ended[i]],
      ];
      [phase.step, phase.steps, phase.last] = [paths.step[i], paths.step_total[i], paths.status[i]];
      phases.push(phase);
    });
    this.open = [];
    open.path.forEach((/** @type {number} */ path, /** @type {number} */ i) => {
      const phase = /** @type {Phase} */ (phases[path]);
      const parent = this.open[open.parent[i]] ?? null;
      phase.open++;
      this.open.push({
        ...{ phase, name: open.name[i], parent, thread: open.thread[i] },
        ...{ start: open.start_s[i], step: open.step[i] },
      });
    });
    this.unwound = new Set(unwound.path.map((/** @type {number} */ path) => phases[path]));
    this.delivered = event.cancel_delivered !== null;
  }

  /** @param {StreamEvent} event */
  #conclude(event) {
    this.end = event;
    this.status = event.status;
    for (const entry of this.open.slice().reverse()) this.#finish(entry, event.time);
    const outcome = event.status === "succeeded" ? "done" : event.status;
    for (const phase of this.unwound) phase.last = outcome;
  }

  /** All phases, parents first. @returns {Phase[]} */
  phases() {
    /** @type {Phase[]} */
    const found = [];
    const walk = (/** @type {Map<string, Phase>} */ level) => {
      for (const phase of level.values()) {
        found.push(phase);
        walk(phase.children);
      }
    };
    walk(this.roots);
    return found;
  }
}

/** @param {Phase} phase @returns {PhaseStatus} */
export function statusOf(phase) {
  return phase.open ? "running" : phase.last;
}

/** Seconds in a phase, with its open instance. @param {Phase} phase @param {number} now by the stream's clock */
export function secondsOf(phase, now) {
  return phase.total + (phase.open ? Math.max(0, now - phase.started) : 0);
}

/**
 * The phases that get a row: open ones first, then the others from the root down, the latest first.
 *
 * @param {Stream} stream
 * @param {number} limit
 * @returns {{rows: Phase[], more: number}} in the order of the tree, and how many have none
 */
export function chooseRows(stream, limit) {
  const phases = stream.phases();
  if (phases.length <= limit) return { rows: phases, more: 0 };
  const ranked = phases.slice().sort(
    (a, b) =>
      Number(a.open === 0) - Number(b.open === 0) ||
      a.depth - b.depth ||
      (b.ended < 0 ? b.started : b.ended) - (a.ended < 0 ? a.started : a.ended),
  );
  /** @type {Set<Phase>} */
  const shown = new Set();
  for (const phase of ranked) {
    if (shown.size >= limit) break;
    if (!phase.parent || shown.has(phase.parent)) shown.add(phase);
  }
  return { rows: phases.filter((phase) => shown.has(phase)), more: phases.length - shown.size };
}
