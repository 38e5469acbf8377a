// Python in a worker: labkit in Pyodide, with the learner's progress in this browser's database.
//
//     page -> here    {id, do: "show", call}  "export"  "restore", text    answered by {id, answer | error}
//                     {do: "message", model, data}      to a widget; answered by {done: true}
//     here -> page    {comm: "comm_open" | "comm_msg" | "comm_close", model, data}
//                     {progress: text}                  while it loads
//
// Everything comes from ../py beside this file's folder: Pyodide as npm has it, and lab.zip.

const HERE = new URL("../py/", import.meta.url);
const say = (progress) => postMessage({ progress });

const ready = (async () => {
  say("Loading Python");
  const { loadPyodide } = await import(new URL("pyodide.mjs", HERE));
  const [py, lab] = await Promise.all([
    loadPyodide({ indexURL: HERE.href, env: { HOME: "/home", LABKIT_HOME: "/progress" } }),
    fetch(new URL("lab.zip", HERE)).then((answer) => {
      if (!answer.ok) throw new Error(`${answer.url}: ${answer.status}`);
      return answer.arrayBuffer();
    }),
  ]);
  say("Loading the lab");
  py.unpackArchive(lab, "zip", { extractDir: "/lib/python3.14/site-packages" });
  py.FS.mkdirTree("/progress");
  py.FS.mount(py.FS.filesystems.IDBFS, {}, "/progress");
  await synced(py, true);
  const page = py.pyimport("page");
  page.post = (comm, model, data) => postMessage({ comm, model, data: JSON.parse(data) });
  return { py, page };
})();

function synced(py, fromBrowser) {
  return new Promise((resolve) => py.FS.syncfs(fromBrowser, (error) => resolve(error)));
}

async function handle({ id, do: what, call, text, model, data }) {
  const { py, page } = await ready;
  if (what === "read") return synced(py, true); // another tab may have written
  if (what === "message") {
    const given = py.toPy(data);
    page.receive(model, given);
    given.destroy();
    return undefined;
  }
  const answer = what === "show" ? page.show(call) : what === "export" ? page.export() : page.restore(text);
  return id && answer;
}

// One after the other, in the order in which they came. An answer says that its change is stored.
let last = Promise.resolve();
onmessage = ({ data: message }) => {
  last = last.then(async () => {
    try {
      const answer = await handle(message);
      const changes = message.do === "message" || message.do === "restore";
      const unstored = changes && (await synced((await ready).py, false));
      postMessage({ id: message.id, done: true, answer, unstored: unstored && String(unstored) });
    } catch (error) {
      // Python's traceback ends with what went wrong; Pyodide may add advice of its own.
      const lines = String(error.message ?? error).trim().split("\n");
      const said = lines.findLast((line) => /^[\w.]+(Error|Exception|Unknown\w*)\b/.test(line));
      postMessage({ id: message.id, done: true, error: said ?? lines.at(-1) });
    }
  });
};
