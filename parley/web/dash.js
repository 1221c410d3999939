// The live page: follows /api/events, shows the runs that are chosen, one alone or several side by
// side. What is chosen stands in the address (#run=...&run=...), so that it survives a reload.
const { parley } = window;
const { make } = parley;
const MOST = 12; // as many as the server follows for one page
const STATES = ["running", "finished", "stopped", "failed", "died"];
// What runs of older versions have measured.
const ACCURACY = [{ name: "accuracy", title: "accuracy", share: true, higher: true }];
const measuresOf = (id) => (rows.get(id)?.measures?.length ? rows.get(id).measures : ACCURACY);
const AXES = { epoch: "epoch", megabytes: "MB sent per agent", seconds: "seconds of training" };

const $ = (id) => document.getElementById(id);
const still = window.matchMedia("(prefers-reduced-motion: reduce)");
const rows = new Map(); // id -> what the list says of a run
const runs = new Map(); // id -> what is known of a run that is shown
let about = { root: "", there: true, note: "" };
let order = [];
let chosen = fromAddress();
let only = new Set();
let axis = "epoch";
let sections = { order: [], html: {}, names: {} }; // what the server has drawn of the chosen runs
let source = null;
let view = null;
let heard = 0;

function fromAddress() {
  return [...new Set(new URLSearchParams(location.hash.slice(1)).getAll("run"))].slice(0, MOST);
}

const figure = (m, record, form) => (m.share ? percent(record[`${m.name}_${form}`]) : parley.number(record[`${m.name}_${form}`]));
const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(1)} %` : "–");
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${Math.round(seconds / 86400)} days`;
}

// ---- the connection

function connect() {
  source?.close();
  const query = new URLSearchParams([...chosen.map((id) => ["watch", id]), ["against", axis]]);
  source = new EventSource(`/api/events?${query}`);
  // A stream begins with everything, whatever an earlier one has told.
  const listen = (kind, act) =>
    source.addEventListener(kind, ({ data }) => {
      heard = Date.now();
      $("link").textContent = "live";
      act(JSON.parse(data));
    });
  listen("runs", (told) => {
    rows.clear();
    told.runs.forEach((row) => rows.set(row.id, { ...row, heard: Date.now() }));
    about = told;
    listed();
  });
  listen("changes", (told) => {
    told.gone.forEach((id) => rows.delete(id));
    told.changed.forEach((row) => rows.set(row.id, { ...row, heard: Date.now() }));
    about = told;
    listed();
  });
  listen("about", (told) => {
    Object.assign(known(told.id), { about: told });
    show();
  });
  listen("series", (told) => {
    Object.assign(known(told.id), told);
    show();
  });
  listen("sections", ({ order, changed, names }) => {
    sections = { order, html: { ...sections.html, ...changed }, names };
    show();
  });
  source.onerror = () => {
    $("link").textContent = "connection lost, trying again …";
  };
}

function known(id) {
  if (!runs.has(id)) runs.set(id, { id, frames: [], records: 0 });
  return runs.get(id);
}

// ---- the list

function listed() {
  order = [...rows.values()];
  order.sort((a, b) => b.began - a.began || (a.id < b.id ? -1 : 1));
  $("root").textContent = about.root;
  document.title = `Parley: ${about.root}`;
  if (!chosen.length && order.length) {
    // Nothing was chosen yet: what is going on, else the newest.
    choose([(order.find((row) => row.state === "running") ?? order[0]).id], true);
  }
  drawList();
  show();
}

function matches(row, words) {
  const fields = ["data", "model", "agents", "topology", "partition", "seed", "epochs"];
  const text = [row.id, row.label, row.state, ...fields.map((f) => `${f}:${row[f]} ${row[f]}`)].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function drawList() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = order.filter((row) => matches(row, words));
  drawStates(found);
  const shown = found.filter((row) => !only.size || only.has(row.state));
  const going = order.filter((row) => row.state === "running").length;
  const some = shown.length === order.length ? plural(order.length, "run") : `${shown.length} of ${plural(order.length, "run")}`;
  setText($("count"), `${some}${going ? `, ${going} running` : ""}`);
  const groups = new Map();
  shown.forEach((row) => groups.set(row.group, [...(groups.get(row.group) ?? []), row]));
  const list = $("list");
  keyed(list, [...groups], ([name]) => `group ${name}`, makeGroup, drawGroup);
  if (!order.length) {
    list.replaceChildren(
      make("p", { className: "faint" }, about.there ? "No runs here yet." : `${about.root} does not exist yet.`),
      make("p", { className: "faint" }, "Start one, and it will appear here: ", make("code", {}, "parley train")),
    );
  } else if (!shown.length) {
    list.replaceChildren(make("p", { className: "faint" }, "No run matches."));
  }
}

function drawStates(found) {
  const there = STATES.filter((state) => order.some((row) => row.state === state) || only.has(state));
  keyed(
    $("states"), there, (state) => state,
    (state) => {
      const button = make("button", { type: "button" });
      button.addEventListener("click", () => {
        if (!only.delete(state)) only.add(state);
        drawList();
      });
      return button;
    },
    (button, state) => {
      button.setAttribute("aria-pressed", String(only.has(state)));
      setText(button, `${state} ${found.filter((row) => row.state === state).length}`);
    },
  );
}

/** Makes, updates and orders children by key, so that focus stays where it is. */
function keyed(parent, items, key, create, update) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = items.map((item) => {
    const child = present.get(key(item)) ?? create(item);
    child.dataset.key = key(item);
    update(child, item);
    return child;
  });
  const same = wanted.length === parent.children.length && wanted.every((child, k) => child === parent.children[k]);
  if (!same) {
    const held = document.activeElement;
    parent.replaceChildren(...wanted);
    if (held !== document.activeElement && parent.contains(held)) held.focus();
  }
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function makeGroup([name]) {
  const section = make("section", {}, make("ul"));
  if (name) {
    const button = make("button", { type: "button" }, "Compare");
    button.setAttribute("aria-label", `Compare the runs of ${name}`);
    button.addEventListener("click", () => choose(representatives(name)));
    section.prepend(make("div", { className: "group" }, make("h2", {}, name), button));
  }
  return section;
}

/** The runs of a folder to put side by side: of every kind the lowest seed, then the next. */
function representatives(group) {
  const members = order.filter((row) => row.group === group);
  const earlier = (row) => members.filter((other) => other.label === row.label && (other.seed ?? 0) < (row.seed ?? 0)).length;
  const kinds = new Set(members.map((row) => row.label)).size;
  const sorted = members.map((row) => [earlier(row), row]).sort((a, b) => a[0] - b[0]);
  const wanted = kinds > 1 ? sorted.filter(([place]) => place === 0) : sorted;
  return wanted.slice(0, MOST).map(([, row]) => row.id);
}

function drawGroup(section, [name, members]) {
  if (name) section.querySelector(".group button").hidden = members.length < 2;
  keyed(section.querySelector("ul"), members, (row) => row.id, makeRun, drawRun);
}

function makeRun(row) {
  const tick = make("input", { type: "checkbox" });
  tick.setAttribute("aria-label", `${row.id} beside the others`);
  tick.addEventListener("change", () => {
    const wanted = tick.checked ? [...chosen, row.id] : chosen.filter((id) => id !== row.id);
    if (wanted.length > MOST) {
      tick.checked = false;
      say(`At most ${MOST} runs fit side by side.`);
      return;
    }
    choose(wanted);
  });
  const parts = ["name", "state", "about", "score"].map((part) => make("span", { className: part }));
  const button = make("button", { type: "button" }, ...parts);
  button.addEventListener("click", () => choose([row.id]));
  button.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...$("list").querySelectorAll(".run button")];
    all[all.indexOf(button) + step]?.focus();
  });
  return make("li", { className: "run" }, tick, button);
}

function drawRun(item, row) {
  const [tick, button] = item.children;
  const [name, state, facts, score] = button.children;
  tick.checked = chosen.includes(row.id);
  item.classList.toggle("chosen", tick.checked);
  button.setAttribute("aria-current", String(tick.checked));
  setText(name, row.name);
  button.title = row.id;
  state.className = `state ${row.state}`;
  setText(state, row.state === "running" ? `${Math.floor(100 * row.done)} %` : row.state);
  setText(facts, [row.label, row.data, row.agents && `${row.agents} agents`, Number.isInteger(row.seed) && `seed ${row.seed}`].filter(Boolean).join(", "));
  setText(score, figure(measuresOf(row.id)[0], row.last, "mean_model"));
}

function choose(ids, quietly = false) {
  if (ids.join("\n") === chosen.join("\n")) return;
  const before = chosen;
  chosen = ids;
  sections = { order: [], html: {}, names: {} };
  runs.forEach((_, id) => !ids.includes(id) && runs.delete(id));
  history.replaceState(null, "", `#${new URLSearchParams(ids.map((id) => ["run", id]))}`);
  if (!quietly) drawList();
  // A new stream tells everything again; what is shown stays until it does.
  if (ids.join() !== before.join()) connect();
  show();
}

function say(words) {
  $("link").textContent = words;
}

// ---- what is shown

let pending = false;
function show() {
  if (pending) return;
  pending = true;
  requestAnimationFrame(() => {
    pending = false;
    draw();
  });
}

function draw() {
  // What was measured is not known before a run's row is.
  const key = chosen.map((id) => [id, ...measuresOf(id).map((m) => m.name)].join(" ")).join("\n");
  if (!view || view.key !== key) {
    view?.dispose();
    $("shown").replaceChildren();
    view = chosen.length > 1 ? sideBySide(key) : chosen.length ? alone(key) : nothing(key);
  }
  view.update();
}

function nothing(key) {
  const words = make("p", { className: "faint" });
  $("shown").append(words);
  return { key, dispose() {}, update: () => setText(words, order.length ? "Choose a run from the list." : "Nothing to show yet.") };
}

function axisChoice() {
  const select = make("select", { id: "axis" }, ...Object.entries(AXES).map(([value, name]) => make("option", { value }, name)));
  select.value = axis;
  select.addEventListener("change", () => {
    axis = select.value;
    connect();
  });
  return make("div", { className: "tools" }, make("label", { htmlFor: "axis" }, "Against"), select);
}

/** The report's sections of the chosen runs, as the server draws them; what has not changed stays. */
function drawings() {
  const element = make("div", { className: "drawings" });
  const update = () => {
    keyed(element, sections.order, (name) => name, () => make("div"), (part, name) => {
      const html = sections.html[name];
      if (part.html === html) return;
      part.html = html;
      part.innerHTML = html;
      parley.refresh(part);
    });
  };
  return { element, update };
}

function going(id) {
  const state = make("span", { className: "state" });
  const bar = make("progress", { max: 1 });
  const words = make("span", { className: "faint" });
  bar.setAttribute("aria-label", "progress");
  const element = make("div", { className: "going" }, state, bar, words);
  const update = () => {
    const row = rows.get(id);
    element.hidden = !row;
    if (!row) return;
    state.className = `state ${row.state}`;
    setText(state, row.state);
    bar.value = row.done;
    const left = row.left === null ? NaN : Math.max(0, row.left - (Date.now() - row.heard) / 1000);
    const remaining = row.state === "running" ? (Number.isFinite(left) ? `about ${duration(left)} left` : "time left not known yet") : "";
    setText(words, [`epoch ${row.last.epoch ?? 0} of ${row.epochs ?? "?"}`, `${Math.floor(100 * row.done)} %`, remaining].filter(Boolean).join(" · "));
  };
  const timer = setInterval(update, 1000);
  return { element, update, dispose: () => clearInterval(timer) };
}

function troubles(id) {
  const row = rows.get(id);
  const run = runs.get(id);
  const found = [];
  if (!row) found.push(order.length || heard ? "This run does not exist (any more)." : "");
  if (row?.state === "died") found.push(`It died: ${row.why}. The same command with --resume continues from its last checkpoint.`);
  if (row?.state === "failed") found.push(`It failed: ${row.why}`);
  if (row?.note) found.push(row.note);
  if (run?.damaged) {
    const which = `${run.damaged_lines.join(", ")}${run.damaged > run.damaged_lines.length ? ", …" : ""}`;
    found.push(`${plural(run.damaged, "damaged line")} of records.jsonl skipped (${which}).`);
  }
  return found.filter(Boolean);
}

function notes() {
  const element = make("div");
  element.setAttribute("role", "status");
  return {
    element,
    update(words) {
      if (element.dataset.words === words.join("\n")) return;
      element.dataset.words = words.join("\n");
      element.replaceChildren(...words.map((text) => make("p", { className: "note" }, text)));
    },
  };
}

function facts(row) {
  const { data, model, agents, topology, partition, seed } = row;
  return [data, model, agents && `${agents} agents`, topology, partition, Number.isInteger(seed) && `seed ${seed}`].filter(Boolean).join(" · ");
}

const TILES = {
  "averaged model": (r, m) => figure(m, r, "mean_model"),
  "own models": (r, m) => figure(m, r, "own"),
  "after gossip": (r, m) => figure(m, r, "after_gossip"),
  "test loss": (r) => parley.number(r.loss),
  "distance": (r) => parley.number(r.consensus_distance),
  "sent per agent": (r) => parley.number((r.bytes_models + r.bytes_cross_gradients) / 1e6, "MB"),
};

function alone(key) {
  const [id] = chosen;
  const run = () => known(id);
  const title = make("h2");
  const sub = make("p", { className: "sub faint" });
  const state = going(id);
  const trouble = notes();
  const values = Object.fromEntries(Object.keys(TILES).map((name) => [name, make("dd")]));
  const tiles = make("dl", { className: "tiles" }, ...Object.entries(values).map(([name, dd]) => make("div", {}, make("dt", {}, name), dd)));
  const graph = graphCard("Distance of each agent from the mean", id);
  const charts = drawings();
  const thinned = make("p", { className: "faint" });
  const table = make("tbody");
  const more = make(
    "details", { className: "more" }, make("summary", {}, "Experiment and machine"),
    make("div", { className: "scroll" }, make("table", {}, table)),
  );
  const update = () => {
    const row = rows.get(id);
    setText(title, row ? `${row.label} on ${row.data ?? "?"}` : id);
    setText(sub, [id, row && facts(row)].filter(Boolean).join(" · "));
    state.update();
    trouble.update(troubles(id));
    for (const [name, dd] of Object.entries(values)) setText(dd, TILES[name](row?.last ?? {}, measuresOf(id)[0]));
    graph.update();
    charts.update();
    const { records, stride, about: told } = run();
    setText(thinned, stride > 1 ? `${plural(records, "record")}; curves show one in ${stride}.` : "");
    if (told && table.told !== told) {
      table.told = told;
      const { algorithm, ...options } = told.options;
      const pairs = { ...options, ...(typeof algorithm === "object" ? algorithm : { algorithm }), ...told.environment };
      table.replaceChildren(
        ...Object.entries(pairs).map(([name, value]) => {
          const head = make("th", { scope: "row" }, name);
          return make("tr", {}, head, make("td", {}, typeof value === "object" ? JSON.stringify(value) : String(value)));
        }),
      );
    }
  };
  $("shown").append(
    title, sub, state.element, trouble.element, tiles, axisChoice(),
    make("div", { className: "sections" }, graph.element, charts.element), thinned, more,
  );
  return { key, update, dispose: () => [state, graph].forEach((part) => part.dispose()) };
}

/** Short names that tell the chosen runs apart, as in the charts. */
const names = () => chosen.map((id) => sections.names[id] ?? rows.get(id)?.label ?? id);

function sideBySide(key) {
  const ids = [...chosen];
  const title = make("h2", {}, `${ids.length} runs side by side`);
  const trouble = notes();
  const body = make("tbody");
  const head = make("thead", {}, make("tr", {}, ...["run", "state", "epoch", ...Object.keys(TILES)].map((name) => make("th", { scope: "col" }, name))));
  const table = make("div", { className: "scroll", tabIndex: 0 }, make("table", {}, head, body));
  table.setAttribute("role", "region");
  table.setAttribute("aria-label", "The newest figures of each run");
  const charts = drawings();
  const graphs = ids.map((id, k) => graphCard(names()[k], id));
  const update = () => {
    const called = names();
    trouble.update(ids.flatMap((id, k) => troubles(id).map((words) => `${called[k]}: ${words}`)));
    keyed(
      body, ids.map((id, k) => [id, called[k]]), ([id]) => id,
      () => make("tr", {}, make("th", { scope: "row" }), make("td", {}, make("span")), ...["epoch", ...Object.keys(TILES)].map(() => make("td"))),
      (tr, [id, name]) => {
        const row = rows.get(id);
        const [th, state, epoch, ...cells] = tr.children;
        setText(th, name);
        th.title = id;
        state.firstChild.className = `state ${row?.state ?? ""}`;
        setText(state.firstChild, row ? `${row.state}${row.state === "running" && row.left !== null ? `, ${duration(row.left)} left` : ""}` : "missing");
        setText(epoch, `${row?.last.epoch ?? 0} of ${row?.epochs ?? "?"}`);
        Object.values(TILES).forEach((tile, k) => setText(cells[k], tile(row?.last ?? {}, measuresOf(id)[0])));
      },
    );
    charts.update();
    graphs.forEach((g, k) => g.update(called[k]));
  };
  $("shown").append(
    title, trouble.element, table, axisChoice(), make("div", { className: "sections" }, charts.element),
    make("div", { className: "graphs" }, ...graphs.map((g) => g.element)),
  );
  return { key, update, dispose: () => graphs.forEach((part) => part.dispose()) };
}

// ---- the graph: colour is the distance to the mean, moving dots are messages

function graphCard(title, id) {
  const heading = make("h3", {}, title);
  const picture = make("div", { className: "parley-canvas" });
  const element = make("section", { className: "graph" }, heading, picture);
  const caption = make("p", { className: "faint key" });
  const slider = make("input", { type: "range", min: 0, max: 0, value: 0 });
  slider.setAttribute("aria-label", `Epoch of the graph of ${title}`);
  const at = make("output");
  const play = make("button", { type: "button" }, "Play");
  element.append(make("div", { className: "replay" }, play, slider, at), caption);
  element.hidden = true;
  let follow = true;
  let timer = null;
  const run = () => known(id);
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  slider.addEventListener("input", () => {
    stop();
    follow = Number(slider.value) === Number(slider.max);
    update();
  });
  play.addEventListener("click", () => {
    if (timer) {
      stop();
      return;
    }
    if (Number(slider.value) === Number(slider.max)) slider.value = 0;
    follow = false;
    play.textContent = "Pause";
    timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      follow = Number(slider.value) === Number(slider.max);
      if (follow) stop();
      update();
    }, 150);
    update();
  });
  const update = (name) => {
    if (name) setText(heading, name);
    const graph = run().about?.graph;
    element.hidden = !graph;
    if (element.hidden) return;
    if (picture.drawing !== graph.drawing) {
      picture.drawing = graph.drawing;
      picture.innerHTML = graph.drawing;
    }
    const all = run().frames;
    slider.max = Math.max(0, all.length - 1);
    if (follow) slider.value = slider.max;
    const frame = all[Number(slider.value)];
    slider.disabled = play.disabled = all.length < 2;
    setText(at, frame ? `epoch ${frame.epoch}` : "no record");
    const row = rows.get(id);
    const moving = (row?.state === "running" || timer !== null) && !still.matches;
    const scale = scaleOf(all);
    picture.firstChild?.setAttribute("aria-label", inWords(graph, frame));
    colour(picture, graph, frame, scale, measuresOf(id)[0]);
    move(picture, graph, row?.last ?? {}, moving);
    drawCaption(caption, graph, { scale, frame, sent: row?.last ?? {} });
  };
  return { element, update, dispose: stop };
}

/** The range of all distances of a run; they fall by orders of magnitude, so colours are logarithmic. */
function scaleOf(frames) {
  const found = frames.flatMap((f) => f.distance_agents ?? []).filter((d) => d > 0);
  if (!found.length) return null;
  const high = found.reduce((a, b) => Math.max(a, b));
  const low = found.reduce((a, b) => Math.min(a, b));
  return { low: Math.min(low, high / 10), high };
}

const shade = (distance, { low, high }) => Math.max(0, Math.log(Math.max(distance, low) / low) / Math.log(high / low));

function inWords(graph, frame) {
  const count = graph.places.length;
  const distances = frame?.distance_agents;
  if (!distances) return `${count} agents and the edges between them.`;
  const present = distances.filter(Number.isFinite); // absent agents have none
  const far = distances.indexOf(Math.max(...present));
  const near = distances.indexOf(Math.min(...present));
  return (
    `${count} agents at epoch ${frame.epoch}. Farthest from the mean is agent ${far} ` +
    `(${parley.number(distances[far])}), nearest agent ${near} (${parley.number(distances[near])}).`
  );
}

/** Each agent in the colour of its distance, which is also said where the pointer is. */
function colour(picture, graph, frame, scale, first) {
  const distances = frame?.distance_agents;
  const measured = frame?.[`${first.name}_agents`];
  graph.places.forEach((_, agent) => {
    const [circle, words] = ["circle", "text"].map((tag) => picture.querySelector(`${tag}[data-of="agent ${agent}"]`));
    if (!circle) return;
    const known = distances && scale && Number.isFinite(distances[agent]);
    const share = known ? shade(distances[agent], scale) : 0;
    circle.style.fill = known ? `var(--c-heat${Math.round(32 * share)})` : "";
    if (words) words.style.fill = known && share > 0.45 ? "var(--c-paper)" : "";
    const title = circle.querySelector("title");
    circle.told ??= title.textContent;
    const said = [circle.told, known && `distance ${parley.number(distances[agent])}`];
    if (measured) said.push(`${first.title} ${figure(first, { [`${first.name}_agents`]: measured[agent] }, "agents")}`);
    setText(title, said.filter(Boolean).join("\n"));
  });
}

/** Dots that move along the edges: models, and cross-gradients back, as large as what is sent. */
function move(picture, { places, edges }, sent, moving) {
  const kinds = [["line0", sent.bytes_models || 0], ["line1", sent.bytes_cross_gradients || 0]];
  const key = moving && edges.length <= 600 ? kinds.join() : "";
  if (picture.moving === key && picture.querySelector(".moving")) return;
  picture.moving = key;
  picture.querySelector(".moving")?.remove();
  const drawing = picture.firstChild;
  if (!drawing) return;
  const node = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
    return made;
  };
  const group = drawing.insertBefore(node("g", { class: "moving" }), drawing.querySelector("circle"));
  if (!key) return;
  const largest = Math.max(...kinds.map(([, bytes]) => bytes), 1);
  kinds.forEach(([name, bytes], back) => {
    if (!bytes) return;
    for (const pair of edges) {
      const [from, to] = (back ? [...pair].reverse() : pair).map((agent) => places[agent].join(" "));
      const dot = group.appendChild(node("circle", { r: Math.max(1.5, 3.5 * Math.sqrt(bytes / largest)), style: `fill:var(--c-${name})` }));
      dot.append(node("animateMotion", { dur: "2.2s", begin: `${-1.1 * back}s`, repeatCount: "indefinite", path: `M${from}L${to}` }));
    }
  });
}

function drawCaption(caption, graph, { scale, sent, frame }) {
  const dot = (name) => make("i", { style: `background:var(--c-${name})` });
  const parts = [];
  if (frame?.distance_agents && scale) {
    const bar = make("i", { className: "bar", style: `background:linear-gradient(90deg,${[0, 8, 16, 24, 32].map((k) => `var(--c-heat${k})`)})` });
    parts.push("Distance to the mean: ", parley.number(scale.low), bar, `${parley.number(scale.high)}. `);
  }
  if (graph.edges.length) {
    parts.push("Moving: ", dot("line0"), "models");
    if (sent.bytes_cross_gradients > 0) parts.push(dot("line1"), "cross-gradients back");
    parts.push(". ");
  }
  if (graph.note) parts.push(`Note: ${graph.note}.`);
  caption.replaceChildren(...parts);
}

// ---- the page

function remembered(name) {
  try {
    if (name) localStorage.setItem("parley-theme", name);
    return localStorage.getItem("parley-theme") ?? "auto";
  } catch {
    return name ?? "auto";
  }
}

parley.themeButton($("theme"), remembered);
$("search").addEventListener("input", drawList);
$("search").addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") $("list").querySelector(".run button")?.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName)) return;
  event.preventDefault();
  $("drawer").open = true;
  $("search").focus();
});
window.addEventListener("hashchange", () => location.hash.includes("run=") && choose(fromAddress()));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address says which runs are shown
  $("shown").focus();
});
still.addEventListener("change", show);
const narrow = window.matchMedia("(max-width: 52rem)");
const fold = () => ($("drawer").open = !narrow.matches);
narrow.addEventListener("change", fold);
fold();
parley.setTheme(remembered());
connect();
show();
