package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kilo-overlay/kilo/core/api"
)

// unknownAnnotations tells of annotations that look like ours and are none, each
// with the nearest that people may write.
func unknownAnnotations(r *reporter, n *corev1.Node) {
	known := slices.Concat(api.Inputs(), api.Outputs(), api.Legacy())
	for _, name := range slices.Sorted(maps.Keys(n.Annotations)) {
		if !isOurs(name) || slices.Contains(known, name) {
			continue
		}
		r.add(UnknownAnnotation, fmt.Sprintf("%s: there is no such annotation and it is ignored; the nearest one is %s", quote(name), nearest(name, api.Inputs())))
	}
}

// nearest returns the name that takes the fewest changes of one letter to get to.
func nearest(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return distance(name, a) - distance(name, b) })
}

// distance counts the letters to insert, drop or replace between a and b, case
// aside: Levenshtein's.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1) // from a[:i] to each b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := corner
			if a[i] != b[j] {
				replace++
			}
			corner = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
