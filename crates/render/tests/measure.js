// Measures the page that the test has put into the frame: what is higher, wider or fainter than it may be.
const FRAME = document.querySelector("iframe");

function parsed(colour) {
  const parts = colour.match(/[\d.]+/g);
  return parts ? parts.slice(0, 4).map(Number) : [0, 0, 0, 0];
}

function luminance(colour) {
  const [red, green, blue] = colour.slice(0, 3).map((channel) => {
    const share = channel / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(a, b) {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}

function background(view, element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = parsed(view.getComputedStyle(at).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
}

function named(element) {
  const text = (element.textContent || "").trim().slice(0, 40);
  return `${element.tagName.toLowerCase()}.${element.getAttribute("class") || ""} ${text}`;
}

function texts(view, page, found) {
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.getClientRects().length) continue;
    if (["SCRIPT", "STYLE", "title", "desc"].includes(element.tagName)) continue;
    const drawn = element.closest("svg");
    // Text in the cell of a heatmap, whose colour is the same in every theme.
    if (drawn && (element.getAttribute("fill") || "").startsWith("#")) continue;
    const style = view.getComputedStyle(element);
    const ratio = contrast(parsed(drawn ? style.fill : style.color), background(view, element));
    found.texts += 1;
    const size = drawn ? Number(element.getAttribute("font-size")) * element.getScreenCTM().a : 12;
    if (size < 12) found.small_texts.push(`${named(element)}: ${size.toFixed(1)}`);
    if (ratio < 4.5) found.faint_texts.push(`${named(element)}: ${ratio.toFixed(2)}`);
  }
}

function marks(view, page, found) {
  for (const mark of page.querySelectorAll("svg circle, svg rect, svg polygon, svg polyline, svg line")) {
    for (const property of ["fill", "stroke"]) {
      if (!/--(contender|part)-/.test(mark.getAttribute(property) || "")) continue;
      const behind = background(view, mark);
      const opacity = Number(mark.getAttribute("opacity") || 1);
      const colour = parsed(view.getComputedStyle(mark)[property]);
      const mixed = [0, 1, 2].map((channel) => opacity * colour[channel] + (1 - opacity) * behind[channel]);
      const ratio = contrast(mixed, behind);
      found.marks += 1;
      if (ratio < 3) found.faint_marks.push(`${mark.tagName} ${mark.getAttribute(property)}: ${ratio.toFixed(2)}`);
    }
  }
}

function clipped(view, page, found) {
  const width = page.documentElement.clientWidth;
  for (const element of page.body.querySelectorAll("*")) {
    const inside = element.closest("svg");
    if (inside && element.tagName === "text") {
      const box = element.getBBox();
      const right = inside.viewBox.baseVal.width;
      if (box.x < -1 || box.x + box.width > right + 1) found.clipped.push(`drawn ${named(element)}`);
      continue;
    }
    if (inside || !element.getClientRects().length) continue;
    // On a wide screen a wide table may scroll within its frame; on a narrow one it is cards.
    if (width > 1000 && element.closest(".scroll")) continue;
    const box = element.getBoundingClientRect();
    if (box.left < -0.5 || box.right > width + 0.5) found.clipped.push(`${named(element)}: ${box.right}`);
    const hidden = view.getComputedStyle(element).overflowX !== "visible";
    if (hidden && element.scrollWidth > element.clientWidth + 1) found.clipped.push(`scrolls ${named(element)}`);
  }
}

window.addEventListener("load", () => {
  const [view, page] = [FRAME.contentWindow, FRAME.contentDocument];
  const found = {
    height: page.body.scrollHeight,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    cards: [...page.querySelectorAll("tbody tr")].filter((row) => view.getComputedStyle(row).display === "block").length,
    texts: 0,
    marks: 0,
    faint_texts: [],
    small_texts: [],
    faint_marks: [],
    clipped: [],
  };
  for (const folded of page.querySelectorAll("details")) folded.open = true;
  texts(view, page, found);
  marks(view, page, found);
  clipped(view, page, found);
  found.scroll_width = page.documentElement.scrollWidth;
  found.client_width = page.documentElement.clientWidth;
  const told = document.createElement("pre");
  told.id = "measured";
  told.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(found))));
  document.body.append(told);
});
