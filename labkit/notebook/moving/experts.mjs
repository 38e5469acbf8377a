// Rows of tokens that go to the ranks of their experts and come back, a square for some rows each.
import { forAnywidget, LINE, PAGE } from "./player.mjs";

const [LEFT, TOP, SQUARE] = [64, 30, 15];

export function experts({ colours, places, counts, per_square, steps }) {
  const per_line = Math.floor((900 - LEFT - 190) / SQUARE);
  const most = Math.max(...places.flat().map(([, , n]) => n + 1));
  const ROW = Math.ceil(most / per_line) * SQUARE + 22;
  const y = (rank) => TOP + rank * ROW;
  const at = (rank, n) => [LEFT + 4 + (n % per_line) * SQUARE, y(rank) + 4 + Math.floor(n / per_line) * SQUARE];

  function shapes(step) {
    const drawn = [{ id: "scale", x: LEFT, y: 12, text: `a square: ${per_square} rows`, faint: true }];
    colours.forEach((colour, rank) => {
      drawn.push({ id: `name-${rank}`, x: 0, y: y(rank) + (ROW - 14) / 2, text: `rank ${rank}` });
      drawn.push({ id: `box-${rank}`, x: LEFT, y: y(rank), w: per_line * SQUARE + 8, h: ROW - 14,
        fill: PAGE, stroke: LINE });
      drawn.push({ id: `count-${rank}`, x: LEFT + per_line * SQUARE + 20, y: y(rank) + (ROW - 14) / 2,
        text: `${counts[step][rank].toLocaleString("en")} rows` });
    });
    places[steps[step].where].forEach(([source, rank, n], number) => {
      const [x, top] = at(rank, n);
      drawn.push({ id: `row-${number}`, x, y: top, w: SQUARE - 3, h: SQUARE - 3, fill: colours[source] });
    });
    return drawn;
  }
  return { width: 900, height: y(colours.length), shapes };
}

export default forAnywidget(experts);
