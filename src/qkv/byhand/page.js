"use strict";
const cells = document.querySelectorAll("td[tabindex]");

function show(cell) {
  document.body.classList.remove("hushed");
  for (const marked of document.querySelectorAll(".source")) marked.classList.remove("source");
  for (const id of cell.dataset.from.split(" ")) document.getElementById(id)?.classList.add("source");
  const how = cell.querySelector(".how");
  how.style.setProperty("--shift", "0px");
  const box = how.getBoundingClientRect();
  const wide = document.documentElement.clientWidth - 8;
  const shift = box.left < 8 ? 8 - box.left : box.right > wide ? wide - box.right : 0;
  how.style.setProperty("--shift", `${shift}px`);
}

function hide() {
  for (const marked of document.querySelectorAll(".source")) marked.classList.remove("source");
}

function step(cell, rows, columns) {
  const [, name, row, column] = cell.id.match(/^(.*)-(\d+)-(\d+)$/);
  document.getElementById(`${name}-${+row + rows}-${+column + columns}`)?.focus();
}

for (const cell of cells) {
  cell.addEventListener("mouseenter", () => show(cell));
  cell.addEventListener("focus", () => show(cell));
  cell.addEventListener("mouseleave", hide);
  cell.addEventListener("blur", hide);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.body.classList.add("hushed");
  const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (move && document.activeElement?.matches("td[tabindex]")) {
    event.preventDefault();
    step(document.activeElement, ...move);
  }
});

const closed = new Set();
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details:not([open])")) {
    closed.add(part);
    part.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const part of closed) part.open = false;
  closed.clear();
});
