// Package apply brings a kernel from what it holds to what is wanted: it
// observes, asks state.Diff what to change, makes the Changes in that order,
// and says what is now true.
//
// Three kindnesses: it adds before it removes, it goes on after a failure, and
// it does not take for absent what it could not see. Whoever calls Run calls
// it again soon after an error; nothing here retries or remembers.
//
// Start with Run.
package apply
