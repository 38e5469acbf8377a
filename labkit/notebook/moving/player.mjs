// Plays pictures that move in steps: buttons, keys, the words of each step, both themes.
//
//     player(el, data, picture)    fills the element `el`; returns a function that stops it
//
// data.title names the picture, and data.steps[k].say is what step k shows. picture(data) returns
// {width, height, shapes}, and shapes(k) lists what is drawn in step k. A shape is an object:
//
//     id          shapes of one id in two steps are one thing, which moves
//     x, y        its place; from: [x, y], the place from which a new one comes
//     w, h        of a box, with fill, stroke, thick; without them it is text alone
//     text        in the middle of a box, or at (x, y) with anchor; faint, or in the colour ink
//     to          [x, y]: an arrow from its place to there
//     opacity     0 to 1; over: true lies over the others
//
// This file and a picture's own are plain ES modules: they need no build step and no server.

export const INK = "var(--jp-content-font-color1, CanvasText)";
export const PAGE = "var(--jp-layout-color0, Canvas)";
export const LINE = "var(--jp-border-color1, GrayText)";
const STEP_MS = 1700;

const STYLE = `
.labkit-moving { color: ${INK}; font: 14px/1.5 var(--jp-content-font-family, system-ui, sans-serif);
  max-width: 900px; padding: 4px; }
.labkit-moving:focus-visible { outline: 2px solid var(--jp-brand-color1, Highlight); }
.labkit-moving .bar { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; }
.labkit-moving button { font: inherit; color: inherit; min-width: 4.5em; padding: 2px 10px;
  cursor: pointer; border: 1px solid ${LINE}; border-radius: 4px;
  background: var(--jp-layout-color2, ButtonFace); }
.labkit-moving button:focus-visible, .labkit-moving input:focus-visible {
  outline: 2px solid var(--jp-brand-color1, Highlight); outline-offset: 1px; }
.labkit-moving input { flex: 1 1 12em; max-width: 24em; }
.labkit-moving .say { min-height: 3em; margin: 4px 0; max-width: 90ch; }
.labkit-moving svg { display: block; width: 100%; height: auto; }
.labkit-moving svg text { font-size: 13px; fill: ${INK}; dominant-baseline: central; }
.labkit-moving svg .faint { fill: var(--jp-content-font-color2, GrayText); }
.labkit-moving svg .shape { transition: transform 0.8s ease-in-out, opacity 0.5s; }
.labkit-moving svg rect { transition: fill 0.5s; }
@media (prefers-reduced-motion: reduce) { .labkit-moving svg * { transition: none !important; } }
`;

export function player(el, data, picture) {
  const last = data.steps.length - 1;
  const drawing = picture(data);
  let step = 0;
  let timer = null;

  const button = (name, press) => {
    const made = html("button", { type: "button" }, name);
    made.addEventListener("click", press);
    return made;
  };
  const play = button("Play", () => (timer ? pause() : start()));
  const back = button("Back", () => go(step - 1));
  const next = button("Next", () => go(step + 1));
  const slider = html("input", { type: "range", min: 0, max: last, "aria-label": "step" });
  slider.addEventListener("input", () => go(Number(slider.value)));
  const count = html("span", {});
  const say = html("p", { class: "say" });
  const svg = element("svg", {
    viewBox: `0 0 ${drawing.width} ${drawing.height}`,
    role: "img",
    "aria-label": data.title,
  });
  svg.style.maxWidth = `${drawing.width}px`;
  const layers = { below: element("g", {}), over: element("g", {}) };
  svg.append(arrowHead(), layers.below, layers.over);
  const root = html("div", {
    class: "labkit-moving",
    role: "group",
    tabindex: 0,
    "aria-label": `${data.title}. Space plays and pauses, the arrow keys step.`,
    "data-lm-suppress-shortcuts": "true", // JupyterLab's own, of the same keys
  });
  const title = html("div", { class: "bar" }, html("strong", {}, data.title));
  const bar = html("div", { class: "bar" }, play, back, next, slider, count);
  root.append(html("style", {}, STYLE), title, bar, say, svg);
  el.replaceChildren(root);

  const known = new Map();
  function show(number) {
    step = Math.max(0, Math.min(last, number));
    slider.value = step;
    slider.setAttribute("aria-valuetext", `${step} of ${last}`);
    count.textContent = `step ${step} of ${last}`;
    say.textContent = data.steps[step].say;
    back.disabled = step === 0;
    next.disabled = step === last;
    draw(layers, known, drawing.shapes(step));
  }
  function go(number) {
    pause();
    show(number);
  }
  function start() {
    if (step === last) show(0);
    root.dataset.playing = "yes";
    play.textContent = "Pause";
    say.setAttribute("aria-live", "off"); // while it plays, it would never stop speaking
    timer = setInterval(() => {
      show(step + 1);
      if (step === last) pause();
    }, data.step_ms || STEP_MS);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    delete root.dataset.playing;
    play.textContent = "Play";
    say.setAttribute("aria-live", "polite");
  }

  const keys = {
    ArrowLeft: () => go(step - 1),
    ArrowRight: () => go(step + 1),
    Home: () => go(0),
    End: () => go(last),
    " ": () => (timer ? pause() : start()),
  };
  root.addEventListener("keydown", (event) => {
    const act = keys[event.key];
    const isOfAButton = event.key === " " && event.target.tagName === "BUTTON";
    if (!act || isOfAButton || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });

  pause();
  show(0);
  // It plays once by itself when it is first seen; never for readers who want no motion.
  const seen = new IntersectionObserver((entries) => {
    if (!entries.some((entry) => entry.isIntersecting)) return;
    seen.disconnect();
    if (step === 0 && !matchMedia("(prefers-reduced-motion: reduce)").matches) start();
  }, { threshold: 0.6 });
  seen.observe(svg);
  return () => {
    seen.disconnect();
    pause();
  };
}

// Return a module for anywidget, which calls `render` with a model that has the data.
export function forAnywidget(picture) {
  return { render: ({ model, el }) => player(el, model.get("data"), picture) };
}

function draw(layers, known, shapes) {
  const old = new Map(known);
  for (const shape of shapes) {
    old.delete(shape.id);
    let group = known.get(shape.id);
    if (!group) {
      group = element("g", { class: "shape" });
      known.set(shape.id, group);
      layers[shape.over ? "over" : "below"].append(group);
      if (shape.from) {
        fill(group, shape);
        place(group, ...shape.from);
        group.getBoundingClientRect(); // it is laid out there, so that it moves from there
      }
    }
    fill(group, shape);
    place(group, shape.x, shape.y);
    group.style.opacity = shape.opacity ?? 1;
  }
  for (const [id, group] of old) {
    group.remove();
    known.delete(id);
  }
}

function place(group, x, y) {
  group.style.transform = `translate(${x}px, ${y}px)`;
}

function fill(group, shape) {
  const look = JSON.stringify([shape.w, shape.h, shape.text, shape.to, shape.thick, shape.stroke,
    shape.faint, shape.ink, shape.anchor, on(shape.fill || "")]);
  if (group.dataset.look !== look) {
    group.dataset.look = look;
    group.replaceChildren(...parts(shape));
  }
  const box = group.querySelector("rect");
  if (box) box.style.fill = shape.fill || "none";
}

function* parts(shape) {
  const isBox = shape.w !== undefined;
  if (shape.to) {
    const [x, y] = shape.to;
    const line = element("line", { x2: x - shape.x, y2: y - shape.y, "marker-end": "url(#labkit-head)" });
    line.style.stroke = INK;
    line.style.strokeWidth = 1.6;
    yield line;
  }
  if (isBox) {
    const box = element("rect", { width: Math.max(shape.w, 0), height: shape.h });
    box.style.stroke = shape.stroke || "none";
    box.style.strokeWidth = shape.thick ? 2.5 : 1;
    yield box;
  }
  if (shape.text !== undefined) {
    const text = element("text", isBox ? { x: shape.w / 2, y: shape.h / 2 } : {}, String(shape.text));
    text.style.textAnchor = isBox ? "middle" : shape.anchor || "start";
    if (shape.ink || (isBox && shape.fill)) text.style.fill = shape.ink || on(shape.fill);
    text.classList.toggle("faint", Boolean(shape.faint));
    yield text;
  }
}

// Black or white, whichever is easier to read on a colour; the page's ink where it is no colour.
function on(colour) {
  if (!/^#[0-9a-f]{6}$/i.test(colour)) return INK;
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.55 ? "#222222" : "#ffffff";
}

function arrowHead() {
  const head = element("path", { d: "M0,0 L8,4 L0,8 z" });
  head.style.fill = INK;
  const marker = { id: "labkit-head", viewBox: "0 0 8 8", refX: 7, refY: 4, orient: "auto" };
  return element("defs", {}, element("marker", { ...marker, markerWidth: 7, markerHeight: 7 }, head));
}

function element(name, attributes, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function html(name, attributes, ...children) {
  return built(document.createElement(name), attributes, children);
}

function built(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
