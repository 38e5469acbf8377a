// A grid to fill, as a whiteboard has it: a table of fields.
//
//     model: rows, columns    headings
//            cells            [row][column]: what is written; the kernel sets it
//            wrong            [row, column] of the cell to look at, or []
//     sends: {cell: [row, column], text}    when a field is left
//
// Arrow keys and Enter move between fields, Tab leaves a row's fields one after another.

const STYLE = `
.labkit-grid { overflow-x: auto; color: var(--jp-content-font-color1, CanvasText); max-width: 100%;
  font: 14px/1.5 var(--jp-content-font-family, system-ui, sans-serif); }
.labkit-grid table { border-collapse: collapse; }
.labkit-grid th { font-weight: 600; padding: 2px 8px; text-align: left; white-space: nowrap; }
.labkit-grid th[scope=row] { position: sticky; left: 0; background: var(--jp-layout-color0, Canvas); }
.labkit-grid td { padding: 1px; }
.labkit-grid input { box-sizing: border-box; font: 13px var(--jp-code-font-family, monospace);
  min-width: 4.5em; padding: 3px 5px; color: inherit; background: var(--jp-layout-color0, Canvas);
  border: 1px solid var(--jp-border-color1, GrayText); border-radius: 3px; }
.labkit-grid input:focus { outline: 2px solid var(--jp-brand-color1, Highlight); }
.labkit-grid input[aria-invalid=true] { border: 2px solid #d55e00; }
`;
const MOVES = { ArrowUp: [-1, 0], ArrowDown: [1, 0], Enter: [1, 0] };

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function render({ model, el }) {
  const rows = model.get("rows");
  const columns = model.get("columns");
  const fields = rows.map((row, r) => columns.map((column, c) => {
    const field = make("input", { "aria-label": `${row}, ${column}`, spellcheck: "false" });
    // A message of its own: changes of the model wait for the kernel's answer to the one before,
    // and a button that is pressed meanwhile would overtake them.
    field.addEventListener("change", () => {
      const cells = model.get("cells").map((each) => [...each]);
      cells[r][c] = field.value;
      model.set("cells", cells);
      model.send({ cell: [r, c], text: field.value });
    });
    field.addEventListener("keydown", (event) => {
      const atStart = field.selectionStart === 0 && field.selectionEnd === 0;
      const atEnd = field.selectionStart === field.value.length;
      let move = MOVES[event.key];
      if (event.key === "ArrowLeft" && atStart) move = [0, -1];
      if (event.key === "ArrowRight" && atEnd) move = [0, 1];
      const next = move && fields[r + move[0]]?.[c + move[1]];
      if (!next) return;
      event.preventDefault();
      next.focus();
      next.select();
    });
    return field;
  }));
  const head = make("tr", {}, make("th", {}),
    ...columns.map((column) => make("th", { scope: "col" }, column)));
  const body = rows.map((row, r) => make("tr", {}, make("th", { scope: "row" }, row),
    ...fields[r].map((field) => make("td", {}, field))));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  const root = make("div", {
    class: "labkit-grid",
    "data-lm-suppress-shortcuts": "true", // JupyterLab's own, of the same keys
  }, make("style", {}, STYLE), table);
  el.replaceChildren(root);

  const fill = () => {
    const widths = columns.map((_, c) => Math.max(4, ...model.get("cells").map((row) => row[c].length)));
    fields.forEach((row, r) => row.forEach((field, c) => {
      const text = model.get("cells")[r][c];
      if (field.value !== text && field !== document.activeElement) field.value = text;
      field.size = widths[c];
    }));
  };
  const mark = () => {
    const wrong = model.get("wrong");
    fields.forEach((row, r) => row.forEach((field, c) => {
      const isWrong = Boolean(wrong.length) && wrong[0] === r && wrong[1] === c;
      field.setAttribute("aria-invalid", String(isWrong));
      if (isWrong) field.focus();
    }));
  };
  model.on("change:cells", fill);
  model.on("change:wrong", mark);
  fill();
  mark();
}

export default { render };
