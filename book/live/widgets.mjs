// Draws ipywidgets whose Python runs elsewhere: each model's state comes in messages, and what a
// reader does goes back in messages. The classes are JupyterLab's, so that one stylesheet fits both.
//
//     const widgets = new Widgets((model, data) => ...)      sends to Python
//     widgets.receive("comm_open", id, data)                 what Python says
//     element.append(widgets.view(id))
//
// A view is {el, update(changed names)}. Layouts, styles and other models without a view stay state.

const LAYOUT = "align_items display flex flex_flow height justify_content margin max_width min_width overflow padding width".split(" ");

export class Widgets {
  constructor(send) {
    this.send = send;
    this.models = new Map();
  }

  receive(kind, id, data) {
    if (kind === "comm_close") {
      this.models.delete(id);
    } else if (kind === "comm_open") {
      this.models.set(id, { id, state: data.state, views: [], handlers: {}, update: (names) => this.update(id, names) });
    } else if (data.method === "update") {
      Object.assign(this.models.get(id).state, data.state);
      this.update(id, Object.keys(data.state));
    } else if (data.content?.do === "focus") {
      this.models.get(id)?.views.at(-1)?.focus();
    }
  }

  // Tells all views of a model, and of a layout those of its widgets.
  update(id, names) {
    const model = this.models.get(id);
    for (const view of model.views) view.update(names);
    for (const name of names) for (const call of model.handlers[`change:${name}`] ?? []) call();
  }

  // A reader changed the state.
  change(model, state) {
    Object.assign(model.state, state);
    this.send(model.id, { method: "update", state });
  }

  custom(model, content) {
    this.send(model.id, { method: "custom", content });
  }

  view(reference) {
    const model = this.models.get(reference.replace("IPY_MODEL_", ""));
    const make = VIEWS[model.state._model_name] ?? VIEWS.OutputModel;
    const { el, focus, update } = make(model, this);
    const layout = this.models.get(model.state.layout?.replace("IPY_MODEL_", ""));
    const place = () => {
      for (const name of LAYOUT) {
        const value = layout.state[name];
        el.style.setProperty(name.replace("_", "-"), value ?? "");
      }
    };
    el.classList.add("jupyter-widgets", ...(model.state._dom_classes ?? []));
    if (layout) {
      place();
      layout.views.push({ update: place });
    }
    model.views.push({ update: update ?? (() => {}), focus: () => (focus ?? el).focus() });
    update?.(Object.keys(model.state));
    return el;
  }
}

let count = 0;

// A control with its label before it.
function labelled(model, kind, control, ...after) {
  control.id = `lab-${count++}`;
  const label = tag("label", "widget-label", { htmlFor: control.id });
  const el = tag("div", `widget-${kind}`, {}, label, control, ...after);
  const update = () => {
    label.textContent = model.state.description;
    label.hidden = !model.state.description;
    if (!model.state.description) control.setAttribute("aria-label", model.state.placeholder || model.state.tooltip || "answer");
    if (model.state.tooltip) control.title = model.state.tooltip;
    control.disabled = Boolean(model.state.disabled);
  };
  return { el, control, update, focus: control };
}

// A line of text, or several. Python hears of a key at once, or when the field is left or Enter pressed.
function text(model, widgets, kind, control) {
  const made = labelled(model, kind, control);
  const tell = () => {
    if (control.value !== model.state.value) widgets.change(model, { value: control.value });
  };
  control.addEventListener("input", () => model.state.continuous_update && tell());
  control.addEventListener("change", tell);
  if (kind === "text") {
    control.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      widgets.custom(model, { event: "submit" });
      tell();
    });
  }
  return {
    ...made,
    update(names) {
      made.update();
      control.placeholder = model.state.placeholder ?? "";
      if (kind === "textarea" && model.state.rows) control.rows = model.state.rows;
      if (names.includes("value") && control.value !== model.state.value) control.value = model.state.value;
    },
  };
}

// A range: `value` of the widget from the position, `words` of it beside the handle.
function slider(model, widgets, { most, position, set, words }) {
  const readout = tag("output", "widget-readout");
  const control = tag("input", "", { type: "range", step: "any" });
  const made = labelled(model, "slider", control, readout);
  const show = () => {
    readout.textContent = words();
    control.setAttribute("aria-valuetext", words());
  };
  control.addEventListener("input", () => {
    set(Number(control.value));
    show();
  });
  return {
    ...made,
    update() {
      made.update();
      const [low, high, step] = most();
      Object.assign(control, { min: low, max: high, step, value: position() });
      show();
    },
  };
}

function number(model, widgets) {
  const control = tag("input", "", { type: "number" });
  const made = labelled(model, "text", control);
  control.addEventListener("change", () => {
    const { min, max } = model.state;
    const value = Math.min(Math.max(Math.round(Number(control.value)), min), max);
    control.value = value;
    widgets.change(model, { value });
  });
  return {
    ...made,
    update() {
      made.update();
      const { value, min, max, step } = model.state;
      Object.assign(control, { min, max, step, value });
    },
  };
}

function boxOf(direction) {
  return (model, widgets) => {
    const el = tag("div", `widget-box widget-${direction}box`);
    const update = (names) => {
      if (names.includes("children")) {
        const kept = new Map([...el.children].map((child) => [child.dataset.model, child]));
        const views = model.state.children.map((child) => {
          const view = kept.get(child) ?? widgets.view(child);
          view.dataset.model = child;
          return view;
        });
        // Only what changed is moved: a field that stays keeps the keyboard.
        for (const child of [...el.children]) if (!views.includes(child)) child.remove();
        views.forEach((view, place) => {
          if (el.children[place] !== view) el.insertBefore(view, el.children[place] ?? null);
        });
      }
    };
    return { el, update };
  };
}

const VIEWS = {
  HTMLModel(model) {
    const content = tag("div", "widget-html-content");
    const el = tag("div", "widget-html", {}, content);
    return { el, update: () => { if (content.innerHTML !== model.state.value) content.innerHTML = model.state.value; } };
  },
  VBoxModel: boxOf("v"),
  HBoxModel: boxOf("h"),
  ButtonModel(model, widgets) {
    const el = tag("button", "widget-button", { type: "button" });
    el.addEventListener("click", () => widgets.custom(model, { event: "click" }));
    return {
      el,
      update() {
        el.textContent = model.state.description;
        el.title = model.state.tooltip ?? "";
        el.disabled = model.state.disabled;
      },
    };
  },
  TextModel: (model, widgets) => text(model, widgets, "text", tag("input", "", { type: "text", autocomplete: "off" })),
  TextareaModel: (model, widgets) => text(model, widgets, "textarea", tag("textarea", "")),
  BoundedIntTextModel: number,
  SelectionSliderModel: (model, widgets) => slider(model, widgets, {
    most: () => [0, model.state._options_labels.length - 1, 1],
    position: () => model.state.index,
    set: (index) => widgets.change(model, { index }),
    words: () => model.state._options_labels[model.state.index],
  }),
  DropdownModel(model, widgets) {
    const control = tag("select", "");
    const made = labelled(model, "dropdown", control);
    control.addEventListener("change", () => widgets.change(model, { index: control.selectedIndex }));
    return {
      ...made,
      update(names) {
        made.update();
        if (names.includes("_options_labels")) {
          control.replaceChildren(...model.state._options_labels.map((name) => tag("option", "", {}, name)));
        }
        control.selectedIndex = model.state.index ?? -1;
      },
    };
  },
  ToggleButtonsModel(model, widgets) {
    const el = tag("div", "widget-toggle-buttons", { role: "group" });
    return {
      el,
      update(names) {
        el.setAttribute("aria-label", model.state.description || "choice");
        if (names.includes("_options_labels")) {
          el.replaceChildren(...model.state._options_labels.map((name, index) => {
            const made = tag("button", "widget-toggle-button", { type: "button" }, name);
            made.addEventListener("click", () => {
              widgets.change(model, { index });
              widgets.update(model.id, ["index"]);
            });
            return made;
          }));
        }
        [...el.children].forEach((made, index) => {
          made.setAttribute("aria-pressed", String(index === model.state.index));
          made.disabled = model.state.disabled;
        });
      },
    };
  },
  CheckboxModel(model, widgets) {
    const control = tag("input", "", { type: "checkbox" });
    const words = tag("span", "");
    const el = tag("div", "widget-checkbox", {}, tag("label", "widget-label-basic", {}, control, words));
    control.addEventListener("change", () => widgets.change(model, { value: control.checked }));
    return {
      el,
      focus: control,
      update() {
        words[model.state.description_allow_html ? "innerHTML" : "textContent"] = model.state.description;
        control.checked = model.state.value;
        control.disabled = model.state.disabled;
      },
    };
  },
  FileUploadModel(model, widgets) {
    const control = tag("input", "", { type: "file" });
    const made = labelled(model, "upload", control);
    control.addEventListener("change", async () => {
      const read = async (file) => ({
        name: file.name, type: file.type, size: file.size, last_modified: file.lastModified,
        content: new Uint8Array(await file.arrayBuffer()),
      });
      widgets.change(model, { value: await Promise.all([...control.files].map(read)) });
      control.value = ""; // the same file again is a change again
    });
    return {
      ...made,
      update() {
        made.update();
        Object.assign(control, { accept: model.state.accept, multiple: model.state.multiple });
      },
    };
  },
  AnyModel(model, widgets) {
    const el = tag("div", "lab-any");
    const file = URL.createObjectURL(new Blob([model.state._esm], { type: "text/javascript" }));
    const face = {
      get: (name) => model.state[name],
      set(name, value) {
        model.state[name] = value;
        (face.changed ??= {})[name] = value;
        for (const call of model.handlers[`change:${name}`] ?? []) call();
      },
      save_changes() {
        if (face.changed) widgets.change(model, face.changed);
        face.changed = undefined;
      },
      send: (content) => widgets.custom(model, content),
      on: (event, call) => (model.handlers[event] ??= []).push(call),
      off: (event, call) => {
        model.handlers[event] = (model.handlers[event] ?? []).filter((each) => each !== call);
      },
    };
    import(file).then(({ default: module, render }) => (render ?? module.render)({ model: face, el }));
    return { el };
  },
  OutputModel: () => ({ el: tag("span", "", { hidden: true }) }),
};

function tag(name, className, properties = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  Object.assign(made, properties);
  if (properties.role) made.setAttribute("role", properties.role);
  made.append(...children);
  return made;
}
