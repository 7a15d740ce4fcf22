// The moving parts of the page of `aero show`. Weights arrive as two base64 characters each:
// round(-250 ln p) up to 4094, and 4095 for what a head does not see.
"use strict";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

// The logarithms of a network's weights, rows one after another: layer, head, row, key <= row.
function decoded(text) {
  const places = new Int16Array(128);
  [...LETTERS].forEach((letter, place) => { places[letter.charCodeAt(0)] = place; });
  const logs = new Float64Array(text.length / 2);
  for (let i = 0; i < logs.length; i++) {
    const code = 64 * places[text.charCodeAt(2 * i)] + places[text.charCodeAt(2 * i + 1)];
    logs[i] = code === 4095 ? -Infinity : -code / 250;
  }
  return logs;
}

// One row as if its scores were divided by a temperature: p^(1/t), normalized.
function rowOf(logs, size, head, row, temperature) {
  const start = head * size * (size + 1) / 2 + row * (row + 1) / 2;
  const part = logs.subarray(start, start + row + 1);
  const most = part.reduce((a, b) => Math.max(a, b), -Infinity);
  const weights = Array.from(part, log => Math.exp((log - most) / temperature));
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map(weight => weight / sum);
}

function entropyOf(weights) {
  return weights.reduce((sum, weight) => weight > 0 ? sum - weight * Math.log(weight) : sum, 0);
}

function mean(values) { return values.reduce((a, b) => a + b, 0) / values.length; }

if (typeof document === "undefined") {
  module.exports = { decoded, rowOf, entropyOf };
} else {
  const networks = JSON.parse(document.getElementById("data").textContent).map((data, index) => {
    const section = document.querySelectorAll(".network")[index];
    return {
      ...data, section, logs: decoded(data.weights), token: null, hovered: null, head: null,
      chips: [...section.querySelectorAll(".tokens button")],
      cells: [...section.querySelectorAll("[data-head]")],
    };
  });
  const slider = document.querySelector("input[type=range]");
  const temperature = () => 2 ** Number(slider.value);

  // Entropies and the most they can be, [heads][rows].
  const measured = one => one.cells.map((_, head) => one.words.map((_, row) =>
    entropyOf(rowOf(one.logs, one.words.length, head, row, temperature()))));
  const most = (one, head, row) => one.most[Math.floor(head / one.heads)][row];
  const share = (value, largest) => largest > 0 ? Math.min(1, value / largest) : 0;
  const tint = (element, value) => element.style.setProperty("--s", (100 * value).toFixed(1) + "%");

  function draw(one) {
    const size = one.words.length, row = one.hovered ?? one.token;
    const chosen = one.head === null ? one.cells.map((_, head) => head) : [one.head];
    const entropies = one.entropies;
    one.chips.forEach((chip, i) => {
      const value = mean(chosen.map(head => entropies[head][i]));
      const largest = mean(chosen.map(head => most(one, head, i)));
      chip.querySelector("small").textContent = `${value.toFixed(2)} of ${largest.toFixed(2)}`;
      chip.setAttribute("aria-pressed", i === one.token);
      if (row === null) tint(chip, share(value, largest));
    });
    if (row !== null) {
      const rows = chosen.map(head => rowOf(one.logs, size, head, row, temperature()));
      one.chips.forEach((chip, i) => {
        const weight = i > row ? 0 : mean(rows.map(weights => weights[i]));
        tint(chip, Math.sqrt(weight));
        chip.querySelector("small").textContent =
          i > row ? "later" : (100 * weight).toFixed(0) + " %";
      });
    }
    one.cells.forEach((cell, head) => {
      const rows = row === null ? one.words.map((_, i) => i) : [row];
      const value = mean(rows.map(i => entropies[head][i]));
      tint(cell, share(value, mean(rows.map(i => most(one, head, i)))));
      cell.textContent = value.toFixed(2);
      cell.setAttribute("aria-pressed", head === one.head);
    });
    const who = one.head === null
      ? "Mean of all heads"
      : `Layer ${Math.floor(one.head / one.heads)}, head ${one.head % one.heads}`;
    one.section.querySelector("[role=status]").textContent = row === null
      ? `${who}: each token with its entropy, of the most that it can be.`
      : `${who}: where ${one.words[row]} looks.`;
    map(one, row);
  }

  // All rows of the chosen head as a picture.
  function map(one, marked) {
    const figure = one.section.querySelector("figure"), canvas = figure.querySelector("canvas");
    figure.hidden = one.head === null;
    if (figure.hidden) return;
    const size = one.words.length, cell = Math.max(6, Math.floor(480 / size));
    const style = getComputedStyle(document.body), pen = canvas.getContext("2d");
    canvas.width = canvas.height = size * cell;
    for (let row = 0; row < size; row++) {
      rowOf(one.logs, size, one.head, row, temperature()).forEach((weight, key) => {
        pen.globalAlpha = 0.06 + 0.94 * Math.sqrt(weight);
        pen.fillStyle = style.getPropertyValue("--dark");
        pen.fillRect(key * cell, row * cell, cell - 1, cell - 1);
      });
    }
    pen.globalAlpha = 1;
    pen.strokeStyle = style.color;
    if (marked !== null) pen.strokeRect(0.5, marked * cell - 0.5, (marked + 1) * cell, cell);
  }

  function measureAll() {
    document.querySelector("output").textContent = temperature().toFixed(2);
    for (const one of networks) { one.entropies = measured(one); draw(one); }
  }

  // Networks that cut the text alike show the same token together.
  function choose(one, name, token) {
    for (const other of networks) {
      if (other === one || other.words.join("\n") === one.words.join("\n")) {
        other[name] = token;
        draw(other);
      }
    }
  }

  for (const one of networks) {
    one.chips.forEach((chip, i) => {
      chip.addEventListener("click", () => choose(one, "token", one.token === i ? null : i));
      chip.addEventListener("pointerenter", event => {
        if (event.pointerType === "mouse") choose(one, "hovered", i);
      });
      chip.addEventListener("pointerleave", () => choose(one, "hovered", null));
    });
    one.cells.forEach((cell, head) => cell.addEventListener("click", () => {
      one.head = one.head === head ? null : head;
      draw(one);
    }));
    one.section.querySelector("canvas").addEventListener("click", event => {
      const shown = event.target.getBoundingClientRect();
      const row = Math.floor((event.clientY - shown.top) / shown.height * one.words.length);
      choose(one, "token", one.token === row ? null : row);
    });
  }
  slider.addEventListener("input", measureAll);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", measureAll);
  document.body.classList.add("alive");
  measureAll();
}
