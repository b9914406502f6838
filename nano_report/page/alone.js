// The page of a single group, for notebooks.

$("view").append(groupFigure(JSON.parse($("group").textContent)));
document.documentElement.dataset.drawn = "1"; // for tests
