// Package cases lists small inputs with known answers, from reports of people who
// run such meshes (cases.txt), and makes sure that a test names each of them. The
// tests themselves are where the code is.
package cases
