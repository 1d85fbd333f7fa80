package state

// inOrder returns s sorted, without what same calls a repetition of its
// neighbour. It returns s itself where nothing is to be done, and a copy
// otherwise; elements that compare equal keep their order. A nil same keeps
// all.
//
// It merges the ascending runs that it finds. What a planner or a kernel hands
// over is a few long runs, seldom more: one or two passes, where a general
// sort would take a dozen.
func inOrder[T any](s []T, compare func(a, b *T) int, same func(a, b *T) bool) []T {
	runs := runs(s, compare)
	if len(runs) <= 1 {
		return s
	}
	from := make([]*T, len(s))
	for i := range s {
		from[i] = &s[i]
	}
	to := make([]*T, 0, len(s))
	for len(runs) > 1 {
		to = to[:0]
		merged := runs[:0]
		start := 0
		for i := 0; i < len(runs); i += 2 {
			middle, end := runs[i], runs[i]
			if i+1 < len(runs) {
				end = runs[i+1]
			}
			to = merge(to, from[start:middle], from[middle:end], compare)
			merged = append(merged, end)
			start = end
		}
		runs = merged
		from, to = to, from
	}
	sorted := make([]T, 0, len(s))
	for i, v := range from {
		if i == 0 || same == nil || !same(from[i-1], v) {
			sorted = append(sorted, *v)
		}
	}
	return sorted
}

func equal[T comparable](a, b *T) bool { return *a == *b }

// runs returns the ends of the strictly ascending runs in s.
func runs[T any](s []T, compare func(a, b *T) int) []int {
	var ends []int
	for i := 1; i < len(s); i++ {
		if compare(&s[i-1], &s[i]) >= 0 {
			ends = append(ends, i)
		}
	}
	if len(s) > 0 && len(ends) > 0 {
		ends = append(ends, len(s))
	}
	return ends
}

func merge[T any](to, a, b []*T, compare func(a, b *T) int) []*T {
	for len(a) > 0 && len(b) > 0 {
		if compare(a[0], b[0]) <= 0 {
			to, a = append(to, a[0]), a[1:]
		} else {
			to, b = append(to, b[0]), b[1:]
		}
	}
	return append(append(to, a...), b...)
}
