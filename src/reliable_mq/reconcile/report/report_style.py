"""How the HTML report looks: one style sheet, light and dark by the reader's own setting."""

STYLE = """\
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #e3e6eb; --text: #171b22; --soft: #646d7a;
  --good: #177244; --moving: #3b76d4; --rest: #7a8493; --bad: #c62f3b; --warn: #b86a09;
  --good-soft: #e2f4ea; --bad-soft: #fce8e9;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #0f1216; --card: #171b21; --line: #2a3039; --text: #e7eaef; --soft: #96a0ae;
    --good: #45b97c; --moving: #6fa3f2; --rest: #66707e; --bad: #f0636d; --warn: #e3a04a;
    --good-soft: #16301f; --bad-soft: #3a1b1f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
header { display: flex; align-items: flex-start; justify-content: space-between; gap: 24px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.02em; }
h2 { font-size: 17px; margin: 0 0 14px; letter-spacing: -.01em; }
h3 { font-size: 15px; margin: 22px 0 4px; }
p { margin: 0; }
.soft { color: var(--soft); }
.bad { color: var(--bad); }
.mono, code, dd { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.mono, code { font-size: .92em; }
.badge {
  white-space: nowrap; font-weight: 600; padding: 7px 16px; border-radius: 99px;
  background: var(--good-soft); color: var(--good);
}
.badge.bad { background: var(--bad-soft); color: var(--bad); }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 22px 24px; margin-top: 20px;
}
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(126px, 1fr)); gap: 12px;
  margin-top: 24px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 14px 16px; }
.tile b { display: block; font-size: 23px; line-height: 1.25; font-weight: 640;
  font-variant-numeric: tabular-nums; letter-spacing: -.02em; }
.tile span { color: var(--soft); font-size: 13px; }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: 13px; }
th, td { padding: 8px 14px 8px 0; border-bottom: 1px solid var(--line); vertical-align: baseline; }
tr:last-child td { border-bottom: 0; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: 9px; }
.wide { width: 38%; }
svg { display: block; width: 100%; }
svg text { fill: var(--soft); font-size: 11px; font-family: inherit; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(380px, 1fr)); gap: 32px; }
details { border-top: 1px solid var(--line); padding: 11px 0; }
summary { cursor: pointer; list-style-position: outside; margin-left: 18px; }
summary .group { color: var(--soft); margin-left: 8px; }
.says { display: block; color: var(--soft); font-size: 14px; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); gap: 6px 18px;
  margin: 12px 0 4px 18px; }
dt { color: var(--soft); font-size: 12px; }
dd { margin: 0; font-size: 12.5px; overflow-wrap: anywhere; }
.notice { border-color: var(--bad); color: var(--bad); }
.scroll { overflow-x: auto; }
footer { margin-top: 26px; color: var(--soft); font-size: 13px; }
"""
