// A page as far as show.js touches one: `node fake_page.js show.js` reads the page's data and a list
// of clicks from standard input, and prints what each network then shows.
"use strict";
const fs = require("fs"), vm = require("vm");
const { data, clicks } = JSON.parse(fs.readFileSync(0));

function element(parts = {}) {
  const held = {}, heard = {}, attributes = {};
  return {
    textContent: "", hidden: false, heard, attributes, held,
    style: { setProperty: (name, value) => { held[name] = value; } },
    setAttribute: (name, value) => { attributes[name] = String(value); },
    addEventListener: (name, what) => { heard[name] = what; },
    getBoundingClientRect: () => ({ top: 0, height: 100 }),
    getContext: () => ({ fillRect() {}, strokeRect() {} }),
    querySelector: selector => parts[selector], querySelectorAll: selector => parts[selector],
    classList: { add() {} },
  };
}

const sections = data.map(one => {
  const size = one.words.length, heads = one.weights.length / (size * (size + 1));
  const canvas = element();
  return element({
    ".tokens button": one.words.map(() => element({ small: element() })),
    "[data-head]": Array.from({ length: heads }, () => element()),
    "[role=status]": element(), figure: element({ canvas }), canvas,
  });
});
const slider = { ...element(), value: "0" }, output = element();
const document = {
  getElementById: () => ({ textContent: JSON.stringify(data) }),
  querySelectorAll: () => sections, body: element(),
  querySelector: selector => (selector === "output" ? output : slider),
};
const page = {
  document, matchMedia: () => element(), Math, JSON, Number, Float64Array, Int16Array,
  getComputedStyle: () => ({ getPropertyValue: () => "#000", color: "#000" }),
};
vm.runInNewContext(fs.readFileSync(process.argv[2], "utf-8"), page);
for (const [what, network, place] of clicks) {
  if (what === "temperature") {
    slider.value = String(place);
    slider.heard.input();
  } else {
    const selector = what === "token" ? ".tokens button" : "[data-head]";
    sections[network].querySelectorAll(selector)[place].heard.click();
  }
}
console.log(JSON.stringify(sections.map(section => ({
  tokens: section.querySelectorAll(".tokens button").map(
    chip => chip.querySelector("small").textContent),
  shades: section.querySelectorAll(".tokens button").map(chip => chip.held["--s"]),
  heads: section.querySelectorAll("[data-head]").map(cell => cell.textContent),
  pressed: section.querySelectorAll("[data-head]").map(cell => cell.attributes["aria-pressed"]),
  status: section.querySelector("[role=status]").textContent,
  map: !section.querySelector("figure").hidden,
}))));
