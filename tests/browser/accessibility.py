"""Check the accessibility of widgets: names, focus, contrast, width. Each returns the faults."""

import time

CONTROLS = "button, input, select, textarea, summary, [role=slider], [role=region]"
# A slider's number beside it is editable, and takes the focus too.
MAY_TAKE_FOCUS = f"{CONTROLS}, a, pre, [tabindex], [contenteditable]"
# Roles that a reader acts on; a screen reader says role and name.
ACTED_ON = {
    *("button", "checkbox", "combobox", "radio", "searchbox", "slider", "spinbutton"),
    *("switch", "tab", "textbox", "listbox", "menuitem", "DisclosureTriangle"),
}
LEAST_CONTRAST = 4.5  # WCAG 2.1, level AA, for text

# Text in the output, whose colour has too little contrast with what lies behind it.
FAINT_TEXT = """
(output, least) => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true})
  const rgba = colour => {
    canvas.clearRect(0, 0, 1, 1)
    canvas.fillStyle = colour
    canvas.fillRect(0, 0, 1, 1)
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data
    return [r, g, b, a / 255]
  }
  const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i])
  const behind = element => {
    if (!element) return [255, 255, 255]
    const colour = rgba(getComputedStyle(element).backgroundColor)
    return colour[3] === 1 ? colour.slice(0, 3) : over(colour, behind(element.parentElement))
  }
  const luminance = colour => {
    const [r, g, b] = colour.map(c => c / 255)
      .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const faults = []
  const walker = document.createTreeWalker(output, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const [text, element] = [walker.currentNode.data.trim(), walker.currentNode.parentElement]
    if (!text || !element.checkVisibility()) continue
    if (element.closest('style, option, .jp-OutputPrompt')) continue
    const below = behind(element)
    const ink = over(rgba(getComputedStyle(element).color), below)
    const [low, high] = [luminance(ink), luminance(below)].sort((x, y) => x - y)
    const contrast = (high + 0.05) / (low + 0.05)
    if (contrast < least) faults.push(`${contrast.toFixed(2)}: ${text.slice(0, 60)}`)
  }
  return faults
}
"""
# Fields scroll by themselves; so may code, and a table that says so and takes the focus.
TOO_WIDE = """
output => [output, ...output.querySelectorAll('*:not(pre, [role=region][tabindex], input, option)')]
  .filter(each => each.checkVisibility() && getComputedStyle(each).overflowX !== 'visible')
  .filter(each => each.scrollWidth > each.clientWidth + 1)
  .map(each => `${each.className} ${each.innerText.slice(0, 30)}: `
               + `${each.scrollWidth} px in ${each.clientWidth}`)
"""
UNREACHED = """
(output, controls) => [...output.querySelectorAll(controls)]
  .filter(each => each.checkVisibility() && !each.disabled && !each.dataset.reached)
  .map(each => each.outerHTML.slice(0, 120))
"""
FOCUSED = "document.activeElement.outerHTML.slice(0, 120)"
PLACEHOLDERS = "output => [...output.querySelectorAll('[placeholder]')].map(e => e.placeholder)"
MARK_FOCUSED = """
output => { const inside = output.contains(document.activeElement)
            if (inside) document.activeElement.dataset.reached = 1
            return inside }
"""


def nameless(page, cell):
    """Controls for which a screen reader has nothing to say, or only a placeholder to read."""
    output = page.locator(f'[data-cell="{cell}"]')
    placeholders = output.evaluate(PLACEHOLDERS)
    return [
        f"{node['role']['value']}, {name!r}"
        for node in _controls(page, cell)
        if not (name := node.get("name", {}).get("value", "").strip()) or name in placeholders
    ]


def _controls(page, cell):
    """Return the controls of a cell's output as Chromium describes them to a screen reader."""
    place = f"""document.querySelector('[data-cell="{cell}"] .jp-Cell-outputArea')"""
    client = page.context.new_cdp_session(page)
    client.send("Accessibility.enable")
    query = {
        "objectId": client.send("Runtime.evaluate", {"expression": place})["result"]["objectId"]
    }
    deadline, found = time.monotonic() + 120, []
    while not found and time.monotonic() < deadline:
        nodes = client.send("Accessibility.queryAXTree", query)["nodes"]
        found = [
            node for node in nodes if not node["ignored"] and node["role"]["value"] in ACTED_ON
        ]
    client.detach()
    assert found, f"{cell} shows nothing to act on"
    return found


def unreached(page, output):
    """Controls that Tab does not come to, from the first one on; or the one that keeps the focus.

    Twice as many keys as there are places that may take it are enough to get out.
    """
    output.locator(CONTROLS).filter(visible=True).first.focus()
    for _ in range(2 * output.locator(MAY_TAKE_FOCUS).count()):
        if not output.evaluate(MARK_FOCUSED):
            return output.evaluate(UNREACHED, CONTROLS)
        page.keyboard.press("Tab")
    return [f"Tab does not get out of {page.evaluate(FOCUSED)}"]


def faint(output):
    """Text with less contrast than LEAST_CONTRAST, each with its contrast."""
    return output.evaluate(FAINT_TEXT, LEAST_CONTRAST)


def too_wide(output):
    """Parts that have to be scrolled sideways."""
    return output.evaluate(TOO_WIDE)
