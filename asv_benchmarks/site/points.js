// A line of one point is nothing: asv's plots of what was measured at one commit show the point.
$.plot.plugins.push({
  init: (plot) => plot.hooks.processRawData.push((_, series, data) => { if (data.length < 2) series.points.show = true; }),
  name: "points",
  version: "1.0",
});
