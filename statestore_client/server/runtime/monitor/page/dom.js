// Elements are made here, and nowhere from text: what peers have sent becomes text nodes and attributes, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const h = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

/** Set the text only if it is another one: what has not changed is neither drawn nor read aloud again. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A table with these heads; each row is a list of texts or elements. `numbers`: the columns that hold numbers. */
export function table(caption, heads, rows, numbers = []) {
  const kind = (i) => ({ class: numbers.includes(i) ? "number" : null });
  return h("div", { class: "table", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {},
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, ...heads.map((head, i) => h("th", { scope: "col", ...kind(i) }, head)))),
      h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => h("td", kind(i), cell)))))));
}
