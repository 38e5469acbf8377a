// Parts of the lab on a page: one worker for all, their widgets, and the learner's progress.
//
//     await start(place, tell)    replaces what `place` shows by what its data-call shows

import { Widgets } from "./widgets.mjs";

const answers = new Map(); // by number of the request
const queue = []; // what the worker has not been sent: it gets one message at a time
let worker;
let isBusy = false;
let count = 0;
let tellLoading = () => {};
const tells = new Map(); // by the part that they speak for

// An error is said below the part in which the reader is.
function tellError(words) {
  const part = document.activeElement?.closest(".lab-live");
  (tells.get(part) ?? tellLoading)(words);
}

export const widgets = new Widgets((model, data) => {
  // A slider moves faster than a plan is made: of several positions only the last is asked for.
  const last = queue.at(-1);
  if (last?.model === model && last.data.method === "update" && data.method === "update") {
    Object.assign(last.data.state, data.state);
  } else {
    queue.push({ do: "message", model, data });
  }
  next();
});

function next() {
  if (isBusy || !queue.length) return;
  isBusy = true;
  document.documentElement.dataset.lab = "busy";
  worker.postMessage(queue.shift());
}

function heard({ data: { comm, model, data, progress, id, done, answer, error, unstored } }) {
  if (progress) return tellLoading(progress);
  if (comm) return widgets.receive(comm, model, data);
  if (!done) return undefined;
  isBusy = false;
  document.documentElement.dataset.lab = "idle";
  const { resolve, reject } = answers.get(id) ?? {};
  answers.delete(id);
  if (error && reject) reject(new Error(error));
  else if (error) tellError(error);
  else resolve?.(answer);
  if (unstored) tellError(`This browser did not store your progress: ${unstored}`);
  return next();
}

export function ask(request) {
  if (!worker) {
    worker = new Worker(new URL("worker.mjs", import.meta.url), { type: "module" });
    worker.onmessage = heard;
    worker.onerror = (event) => {
      for (const { reject } of answers.values()) reject(new Error(event.message || "the worker did not load"));
    };
    // Another tab may have written meanwhile.
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) {
        queue.push({ do: "read" });
        next();
      }
    });
  }
  return new Promise((resolve, reject) => {
    count += 1;
    answers.set(count, { resolve, reject });
    queue.push({ id: count, ...request });
    next();
  });
}

export async function start(place, tell) {
  tellLoading = tell;
  tells.set(place, tell);
  const { model, html } = JSON.parse(await ask({ do: "show", call: place.dataset.call }));
  if (model) {
    place.replaceChildren(widgets.view(model));
  } else {
    place.innerHTML = html;
  }
  if ("progress" in place.dataset) place.append(files(tell));
}

// Progress out to a file that `labkit import` reads, and in from one that `labkit export` wrote.
function files(tell) {
  const out = document.createElement("button");
  Object.assign(out, { type: "button", className: "lab-start", textContent: "Save progress to a file" });
  out.addEventListener("click", async () => {
    const text = await ask({ do: "export" });
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "labkit-progress.json";
    link.click();
    URL.revokeObjectURL(link.href);
  });
  const back = document.createElement("label");
  back.className = "lab-file";
  const file = document.createElement("input");
  Object.assign(file, { type: "file", accept: ".json" });
  file.addEventListener("change", async () => {
    try {
      tell(await ask({ do: "restore", text: await file.files[0].text() }));
    } catch (error) {
      tell(error.message);
    }
    file.value = "";
  });
  back.append("Read progress from a file ", file);
  const row = document.createElement("p");
  row.append(out, back);
  return row;
}
