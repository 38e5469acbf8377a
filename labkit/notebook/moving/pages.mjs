// The slots of a cache, page by page: whose keys and values are in each, and which token's.
import { forAnywidget, LINE, PAGE } from "./player.mjs";

const [LEFT, TOP, CELL] = [70, 24, 26];

export function pages({ num_slots, page_size, colours, shots, names }) {
  const per_row = Math.max(page_size, Math.floor((900 - LEFT) / CELL / page_size) * page_size);
  const place = (slot) => [LEFT + (slot % per_row) * CELL, TOP + Math.floor(slot / per_row) * (CELL + 24)];
  const bottom = place(num_slots - 1)[1] + CELL + 20;

  function shapes(step) {
    const drawn = [{ id: "slots", x: 0, y: TOP + CELL / 2, text: "slots" }];
    shots[step].slots.forEach(({ held, letter }, slot) => {
      const [x, y] = place(slot);
      drawn.push({ id: `slot-${slot}`, x, y, w: CELL, h: CELL, fill: PAGE, stroke: LINE });
      const width = CELL / Math.max(1, held.length);
      held.forEach(({ sequence, cached }, number) => drawn.push({ id: `held-${slot}-${sequence}`,
        x: x + number * width, y, w: width, h: CELL, fill: colours[sequence], opacity: cached ? 1 : 0.35 }));
      drawn.push({ id: `frame-${slot}`, x, y, w: CELL, h: CELL, stroke: LINE, over: true });
      drawn.push({ id: `letter-${slot}`, x, y, w: CELL, h: CELL, text: letter, over: true,
        ink: held.length ? "#222222" : undefined });
      if (slot % page_size === 0) {
        drawn.push({ id: `page-${slot}`, x, y, w: CELL * page_size, h: CELL, stroke: "currentColor",
          thick: true, over: true });
        drawn.push({ id: `number-${slot}`, x, y: y - 9, text: `page ${slot / page_size}`, faint: true });
      }
    });
    names.forEach((name, sequence) => {
      const y = bottom + sequence * 22;
      drawn.push({ id: `key-${sequence}`, x: 0, y: y - 7, w: 14, h: 14, fill: colours[sequence] });
      drawn.push({ id: `name-${sequence}`, x: 22, y, text: `${name}: ${shots[step].places[sequence]}` });
    });
    return drawn;
  }
  return { width: 900, height: bottom + names.length * 22, shapes };
}

export default forAnywidget(pages);
