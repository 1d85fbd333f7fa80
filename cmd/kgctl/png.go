package main

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"

	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"

	"github.com/kilo-overlay/kilo/core/render"
)

// canvas is a picture that lines and text are put on.
type canvas struct{ *image.RGBA }

var (
	ink   = color.RGBA{0x33, 0x33, 0x33, 0xff}
	blue  = color.RGBA{0x00, 0x66, 0xcc, 0xff}
	paper = color.RGBA{0xff, 0xff, 0xff, 0xff}
	shade = color.RGBA{0xf6, 0xf8, 0xfa, 0xff}
)

// writePNG paints a drawing, with the one font that every program can carry.
func writePNG(w io.Writer, d render.Drawing) error {
	c := canvas{image.NewRGBA(image.Rect(0, 0, d.Width, d.Height))}
	draw.Draw(c, c.Bounds(), image.NewUniform(paper), image.Point{}, draw.Src)
	c.text(d.Width/2-len(d.Title)*7/2, 18, d.Title, ink)
	for i := range d.Groups {
		g := &d.Groups[i]
		c.box(g, shade)
		c.text(g.X+8, g.Y+15, g.Lines[0], ink)
	}
	for _, e := range d.Edges {
		at := ink
		if e.Blue {
			at = blue
		}
		c.line(e.X1, e.Y1, e.X2, e.Y2, e.Stroke, at)
		c.text((e.X1+e.X2)/2-len(e.Label)*7/2, (e.Y1+e.Y2)/2-3, e.Label, at)
	}
	for i := range d.Boxes {
		b := &d.Boxes[i]
		c.box(b, paper)
		for j, l := range b.Lines {
			x, y := b.Line(j)
			c.text(x, y, l, ink)
		}
	}
	return png.Encode(w, c)
}

func (c canvas) text(x, y int, s string, at color.Color) {
	(&font.Drawer{Dst: c, Src: image.NewUniform(at), Face: basicfont.Face7x13, Dot: fixed.P(x, y)}).DrawString(s)
}

func (c canvas) box(b *render.Box, fill color.Color) {
	draw.Draw(c, image.Rect(b.X, b.Y, b.X+b.W, b.Y+b.H), image.NewUniform(fill), image.Point{}, draw.Src)
	right, bottom := b.X+b.W, b.Y+b.H
	c.line(b.X, b.Y, right, b.Y, b.Stroke, ink)
	c.line(right, b.Y, right, bottom, b.Stroke, ink)
	c.line(b.X, bottom, right, bottom, b.Stroke, ink)
	c.line(b.X, b.Y, b.X, bottom, b.Stroke, ink)
}

// line puts dots along a line, one a pixel, as its stroke has them.
func (c canvas) line(x1, y1, x2, y2 int, s render.Stroke, at color.Color) {
	length := math.Hypot(float64(x2-x1), float64(y2-y1))
	for i := 0.0; i <= length; i++ {
		switch {
		case s == render.Dashed && int(i)%10 >= 6, s == render.Dotted && int(i)%5 >= 2:
			continue
		}
		part := 0.0
		if length > 0 {
			part = i / length
		}
		x, y := int(math.Round(float64(x1)+part*float64(x2-x1))), int(math.Round(float64(y1)+part*float64(y2-y1)))
		c.Set(x, y, at)
		if s == render.Thick {
			c.Set(x+1, y, at)
			c.Set(x, y+1, at)
		}
	}
}
