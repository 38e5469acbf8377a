// A JupyterLab extension without code: JupyterLab loads this file by `_build.load` of package.json,
// and asks it for `_build.style`, unless the user has disabled the extension `labkit`.
(() => {
  const stylesheet = new URL("labkit.css", document.currentScript.src).href;

  function addStylesheet() {
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = stylesheet;
    document.head.append(link);
    return {};
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB.labkit = {
    init: async () => {}, // shares no modules
    get: async () => addStylesheet,
  };
})();
