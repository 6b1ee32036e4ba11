// Package sample holds the content of two repositories as the ADR describes
// them: a source repository with two apps, and the records that declare them.
package sample

import (
	"embed"
	"io/fs"
)

//go:embed all:atlas all:apps
var files embed.FS

// Atlas gives the content of atlas/atlas: dataops/citation-dagster, a Dagster
// code location on a Debian base with packages from apt and pip, and web/hello,
// a page on a BusyBox base.
func Atlas() fs.FS { return sub("atlas") }

// Apps gives the content of cluster/apps, both apps declared and never built.
func Apps() fs.FS { return sub("apps") }

func sub(dir string) fs.FS {
	tree, err := fs.Sub(files, dir)
	if err != nil {
		panic(err) // only for a name that is no valid path
	}
	return tree
}
