// Package detect chooses the adapter for the host CNI that a node runs.
//
// It only looks at what CNIs leave on a node, and says what it looked for
// where it found nothing or too much: it never guesses, since an agent on the
// wrong adapter would route into nowhere.
package detect
