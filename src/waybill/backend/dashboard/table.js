// A virtual table of any length: only the visible rows exist as elements. All rows have the same height.

import { h, keep, show, stand } from "./dom.js";

const EXTRA = 6;

export class Table {
  // `columns`: {name, class, cell(row)}; `key(row)`; `open(row)`; `more()` loads further rows; `picked` is a Set of keys, or null.
  constructor({ label, columns, key, open, more, picked, onpick, rowHeight = 44 }) {
    Object.assign(this, { label, columns, key, open, more, picked, onpick, rowHeight });
    this.rows = [];
    this.current = -1;
    this.drawn = new Map();
    this.body = h("div.rows", { role: "rowgroup" });
    const heads = columns.map(one => h("div", { class: one.class || "", role: "columnheader" }, one.name || h("span.sr", one.label)));
    this.head = h("div.row.row-head", { role: "row", "aria-rowindex": "1" }, heads);
    this.scroller = h("div.scroller", { tabindex: "0", role: "group", "aria-label": `${label}, j and k to move`, onscroll: () => this.soon(true) },
      h("div.grid", { role: "table", "aria-label": label }, h("div", { role: "rowgroup", class: "sticky" }, this.head), this.body));
    this.element = keep(h("div.table", this.scroller));
    this.watch = new ResizeObserver(() => this.soon());
    this.watch.observe(this.scroller);
  }

  set(rows, hasMore) {
    const marked = this.rows[this.current] && this.key(this.rows[this.current]);
    this.rows = rows;
    this.hasMore = hasMore;
    this.current = marked === undefined ? this.current : rows.findIndex(one => this.key(one) === marked);
    this.soon();
  }

  // Scrolling changes no rows. Only those that become visible are made.
  soon(isScroll = false) {
    this.whole ||= !isScroll;
    this.waiting ||= requestAnimationFrame(() => {
      this.waiting = 0;
      this.draw();
    });
  }

  draw() {
    const { scrollTop, clientHeight } = this.scroller;
    const first = Math.max(0, Math.floor(scrollTop / this.rowHeight) - EXTRA);
    const last = Math.min(this.rows.length, Math.ceil((scrollTop + (clientHeight || 800)) / this.rowHeight) + EXTRA);
    const old = this.whole ? new Map() : this.drawn, rows = this.rows.slice(first, last);
    if (this.whole) {
      this.body.style.setProperty("height", `${this.rows.length * this.rowHeight}px`);
      this.body.parentElement.setAttribute("aria-rowcount", String(this.hasMore ? -1 : this.rows.length + 1));
    }
    this.whole = false;
    show(this.body, rows.map((row, index) => (old.has(row) ? stand(old.get(row)) : this.row(row, first + index))));
    this.drawn = new Map(rows.map((row, index) => [row, this.body.children[index]]));
    if (this.hasMore && !this.loading && last >= this.rows.length - 20 && this.more) {
      this.loading = true;
      this.more().finally(() => (this.loading = false, this.soon()));
    }
  }

  row(row, index) {
    const key = this.key(row);
    const click = event => {
      if (event.target.closest("a, button, input, label") || getSelection().toString()) return;
      this.current = index;
      this.open?.(row, event);
    };
    return h("div", { key, role: "row", "aria-rowindex": String(index + 2), class: `row${index === this.current ? " current" : ""}${this.open ? " opens" : ""}`, style: { transform: `translateY(${index * this.rowHeight}px)` }, onclick: click },
      this.columns.map(one => h("div", { role: "cell", class: one.class || "" }, one.cell(row))));
  }

  move(by) {
    if (!this.rows.length) return;
    this.current = Math.min(this.rows.length - 1, Math.max(0, this.current + by));
    const top = this.current * this.rowHeight, seen = this.scroller.clientHeight - 44;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > this.scroller.scrollTop + seen) this.scroller.scrollTop = top + this.rowHeight - seen;
    this.soon();
  }

  enter() {
    const row = this.rows[this.current];
    if (row) this.open?.(row);
  }

  pick() {
    const row = this.rows[this.current];
    if (row && this.picked) this.toggle(this.key(row));
  }

  toggle(key) {
    this.picked.has(key) ? this.picked.delete(key) : this.picked.add(key);
    this.soon();
    this.onpick?.();
  }

  close() {
    this.watch.disconnect();
  }
}
