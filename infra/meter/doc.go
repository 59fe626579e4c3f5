// Package meter adds to the metrics library what a stock Prometheus needs: histograms with buckets `le`, as the text
// format 0.0.4 has them, and the sum of several processes' metrics.
package meter
