// A ring all-reduce: a row for each rank, a column for each chunk, a stripe for each contribution.
// In a step the contributions move from the sender's chunk to its right neighbour's.
import { forAnywidget, LINE, PAGE } from "./player.mjs";

const [LEFT, TOP, ROW, HEIGHT] = [76, 44, 62, 36];

export function ring({ ranks, colours, states, hops }) {
  const n = ranks.length;
  const column = Math.min(170, (900 - LEFT) / n);
  const [width, stripe] = [0.88 * column, (0.88 * column) / n];
  const x = (chunk) => LEFT + chunk * column;
  const y = (row) => TOP + row * ROW;

  function shapes(step) {
    const drawn = [];
    ranks.forEach((rank, row) => {
      drawn.push({ id: `rank-${row}`, x: 0, y: y(row) + HEIGHT / 2, text: `rank ${rank}` });
      const name = column > 80 ? `chunk ${row}` : row;
      const middle = x(row) + width / 2;
      drawn.push({ id: `chunk-${row}`, x: middle, y: 14, text: name, anchor: "middle", faint: true });
    });
    const came = new Map(); // cell -> row from which it was sent in this step
    if (step) hops[step - 1].forEach(([from, to, chunk]) => came.set(`${to}-${chunk}`, from));
    states[step].forEach((holding, row) => holding.forEach((held, chunk) => {
      const from = came.get(`${row}-${chunk}`);
      drawn.push({ id: `cell-${row}-${chunk}`, x: x(chunk), y: y(row), w: width, h: HEIGHT, fill: PAGE });
      held.forEach((rank) => {
        const left = x(chunk) + rank * stripe;
        const start = from === undefined ? undefined : [left, y(from)];
        drawn.push({ id: `part-${row}-${chunk}-${rank}`, x: left, y: y(row), w: stripe, h: HEIGHT,
          fill: colours[rank], text: stripe > 14 ? ranks[rank] : undefined, from: start });
      });
      const changed = from !== undefined;
      drawn.push({ id: `frame-${row}-${chunk}`, x: x(chunk), y: y(row), w: width, h: HEIGHT,
        stroke: changed ? "var(--jp-content-font-color1, CanvasText)" : LINE, thick: changed, over: true });
    }));
    came.forEach((from, cell) => {
      const [to, chunk] = cell.split("-").map(Number);
      const middle = x(chunk) + width / 2;
      if (to > from) drawn.push(arrow(`${step}-${from}`, middle, y(from) + HEIGHT, y(to)));
      else drawn.push(arrow(`${step}-${from}`, middle, y(from) + HEIGHT, y(from) + ROW - 6),
        { id: "around", x: middle + 8, y: y(from) + HEIGHT + 12, text: `to rank ${ranks[to]}`, faint: true },
        arrow(`${step}-${from}-in`, middle, y(to) - 18, y(to)));
    });
    return drawn;
  }
  return { width: 900, height: y(n), shapes };
}

function arrow(id, x, begin, end) {
  return { id: `arrow-${id}`, x, y: begin, to: [x, end - 2] };
}

export default forAnywidget(ring);
