// A save's operations in the order of time; below, what the next load gives if the power is cut now.
import { forAnywidget, INK, LINE, PAGE } from "./player.mjs";

const [LEFT, TOP, ROW] = [116, 8, 26];

export function cuts({ rows, operations, outcomes, steps }) {
  const width = Math.min(30, (900 - LEFT) / operations.length);
  const y = (row) => TOP + row * ROW + (row < rows ? 0 : 14);

  function shapes(step) {
    const drawn = [];
    for (let row = 0; row < rows; row += 1) {
      drawn.push({ id: `rank-${row}`, x: 0, y: y(row) + ROW / 2 - 2, text: `rank ${row}` });
    }
    outcomes.forEach(({ name }, way) => {
      drawn.push({ id: `way-${way}`, x: 0, y: y(rows + way) + ROW / 2 - 2, text: name });
    });
    operations.forEach(({ rank, letter, colour }, number) => {
      const [x, isDone] = [LEFT + number * width, number < step];
      drawn.push({ id: `operation-${number}`, x, y: y(rank), w: width - 2, h: ROW - 4,
        fill: isDone ? colour : PAGE, stroke: LINE, text: letter, opacity: isDone ? 1 : 0.45 });
      outcomes.forEach(({ found }, way) => {
        const { text, colour: state } = found[number];
        drawn.push({ id: `found-${way}-${number}`, x, y: y(rows + way), w: width - 2, h: ROW - 4,
          fill: isDone ? state : PAGE, stroke: LINE, text: isDone ? text : "" });
      });
    });
    const now = LEFT + step * width - 1.5;
    drawn.push({ id: "now", x: now, y: 0, w: 2, h: y(rows + outcomes.length), fill: INK, over: true });
    return drawn;
  }
  return { width: 900, height: y(rows + outcomes.length) + 6, shapes };
}

export default forAnywidget(cuts);
