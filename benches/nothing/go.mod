module nothing

go 1.26.0
